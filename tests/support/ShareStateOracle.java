import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.share.PersisterStateBatchCombiner;
import org.apache.kafka.coordinator.share.ShareCoordinatorRecordHelpers;
import org.apache.kafka.coordinator.share.ShareCoordinatorRecordSerde;
import org.apache.kafka.coordinator.share.ShareGroupOffset;
import org.apache.kafka.server.share.persister.PersisterStateBatch;

/**
 * Kafka's records and its merge of state batches as an oracle. Lines of fields between tabs come in; batches are
 * `first,last,state,count` between spaces. One line is answered to each.
 *
 *   COMBINE batches batches start                                              answered by batches
 *   SNAPSHOT group topicId partition epoch stateEpoch leaderEpoch start count created written batches
 *   UPDATE group topicId partition epoch leaderEpoch start count batches       answered by key and value in hex
 */
public class ShareStateOracle {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] fields = line.split("\t", -1);
            System.out.println(switch (fields[0]) {
                case "COMBINE" -> print(new PersisterStateBatchCombiner(
                    parse(fields[1]), parse(fields[2]), Long.parseLong(fields[3])).combineStateBatches());
                case "SNAPSHOT" -> hex(ShareCoordinatorRecordHelpers.newShareSnapshotRecord(
                    fields[1], Uuid.fromString(fields[2]), Integer.parseInt(fields[3]),
                    new ShareGroupOffset.Builder()
                        .setSnapshotEpoch(Integer.parseInt(fields[4]))
                        .setStateEpoch(Integer.parseInt(fields[5]))
                        .setLeaderEpoch(Integer.parseInt(fields[6]))
                        .setStartOffset(Long.parseLong(fields[7]))
                        .setDeliveryCompleteCount(Integer.parseInt(fields[8]))
                        .setCreateTimestamp(Long.parseLong(fields[9]))
                        .setWriteTimestamp(Long.parseLong(fields[10]))
                        .setStateBatches(parse(fields[11]))
                        .build()));
                default -> hex(ShareCoordinatorRecordHelpers.newShareUpdateRecord(
                    fields[1], Uuid.fromString(fields[2]), Integer.parseInt(fields[3]),
                    new ShareGroupOffset.Builder()
                        .setSnapshotEpoch(Integer.parseInt(fields[4]))
                        .setLeaderEpoch(Integer.parseInt(fields[5]))
                        .setStartOffset(Long.parseLong(fields[6]))
                        .setDeliveryCompleteCount(Integer.parseInt(fields[7]))
                        .setStateBatches(parse(fields[8]))
                        .build()));
            });
        }
    }

    private static List<PersisterStateBatch> parse(String text) {
        List<PersisterStateBatch> batches = new ArrayList<>();
        for (String each : text.isEmpty() ? new String[0] : text.split(" ")) {
            String[] numbers = each.split(",");
            batches.add(new PersisterStateBatch(Long.parseLong(numbers[0]), Long.parseLong(numbers[1]),
                Byte.parseByte(numbers[2]), Short.parseShort(numbers[3])));
        }
        return batches;
    }

    private static String print(List<PersisterStateBatch> batches) {
        List<String> texts = new ArrayList<>();
        for (PersisterStateBatch each : batches)
            texts.add(each.firstOffset() + "," + each.lastOffset() + "," + each.deliveryState() + ","
                + each.deliveryCount());
        return String.join(" ", texts);
    }

    private static String hex(CoordinatorRecord record) {
        ShareCoordinatorRecordSerde serde = new ShareCoordinatorRecordSerde();
        return HexFormat.of().formatHex(serde.serializeKey(record)) + "\t"
            + HexFormat.of().formatHex(serde.serializeValue(record));
    }
}
