import java.io.ByteArrayInputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/**
 * For each certificate of a PEM file the subject as Java prints it, and what Kafka's rules make of it: a line each.
 * Arguments: the file, then rules.
 */
public class PrincipalNames {
    public static void main(String[] arguments) throws Exception {
        byte[] pem = Files.readAllBytes(Path.of(arguments[0]));
        StringBuilder out = new StringBuilder();
        for (var each : CertificateFactory.getInstance("X.509").generateCertificates(new ByteArrayInputStream(pem))) {
            String name = ((X509Certificate) each).getSubjectX500Principal().getName();
            out.append(name).append('\n');
            for (int at = 1; at < arguments.length; at++) {
                String mapped;
                try {
                    mapped = SslPrincipalMapper.fromRules(arguments[at]).getName(name);
                } catch (Exception error) {
                    mapped = "none";
                }
                out.append(mapped).append('\n');
            }
        }
        System.out.write(out.toString().getBytes(StandardCharsets.UTF_8));
        System.out.flush();
    }
}
