import java.nio.file.*;
import java.util.*;
import org.apache.kafka.common.utils.Utils;

/** Prints Kafka's hash of each key of a file, whose lines are keys in hexadecimal digits. */
public class Murmur {
    public static void main(String[] arguments) throws Exception {
        StringBuilder out = new StringBuilder();
        for (String line : Files.readAllLines(Path.of(arguments[0])))
            out.append(Utils.murmur2(HexFormat.of().parseHex(line))).append('\n');
        System.out.print(out);
    }
}
