import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.AbstractConfig;
import org.apache.kafka.common.message.DeleteShareGroupStateRequestData;
import org.apache.kafka.common.message.InitializeShareGroupStateRequestData;
import org.apache.kafka.common.message.ReadShareGroupStateRequestData;
import org.apache.kafka.common.message.ReadShareGroupStateSummaryRequestData;
import org.apache.kafka.common.message.WriteShareGroupStateRequestData;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.internals.LogContext;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataImage;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.common.runtime.CoordinatorResult;
import org.apache.kafka.coordinator.share.ShareCoordinatorConfig;
import org.apache.kafka.coordinator.share.ShareCoordinatorRecordSerde;
import org.apache.kafka.coordinator.share.ShareCoordinatorShard;
import org.apache.kafka.coordinator.share.metrics.ShareCoordinatorMetrics;
import org.apache.kafka.timeline.SnapshotRegistry;

/**
 * Kafka 4.4's share coordinator as an oracle, for group `g` and a topic whose first three partitions exist. Lines of
 * fields between spaces come in, with the wall time in ms as the first one; batches are `first,last,state,count` between
 * semicolons. The answer has the error code, what was read, and the records in hex.
 *
 *   now NEW updatesPerSnapshot coldMs                                   another coordinator, without states
 *   now INITIALIZE partition stateEpoch start
 *   now WRITE partition stateEpoch leaderEpoch start complete batches
 *   now READ partition leaderEpoch
 *   now SUMMARY partition
 *   now DELETE partition
 *   now COLD                                                            snapshots of cold share partitions
 */
public class ShareCoordinatorOracle {
    private static final Uuid TOPIC = Uuid.fromString("AAECAwQFBgcICQoLDA0ODw");
    private static long now = 0;
    private static long offset = 0;
    private static ShareCoordinatorShard shard;

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] fields = line.split(" ", -1);
            now = Long.parseLong(fields[0]);
            System.out.println(answer(fields));
        }
    }

    private static String answer(String[] fields) {
        int partition = fields[1].equals("COLD") ? 0 : Integer.parseInt(fields[2]);
        switch (fields[1]) {
            case "NEW" -> {
                open(fields[2], fields[3]);
                return "";
            }
            case "INITIALIZE" -> {
                var result = shard.initializeState(new InitializeShareGroupStateRequestData().setGroupId("g").setTopics(
                    List.of(new InitializeShareGroupStateRequestData.InitializeStateData().setTopicId(TOPIC).setPartitions(
                        List.of(new InitializeShareGroupStateRequestData.PartitionData().setPartition(partition)
                            .setStateEpoch(Integer.parseInt(fields[3])).setStartOffset(Long.parseLong(fields[4])))))));
                var row = result.response().results().get(0).partitions().get(0);
                return row.errorCode() + "||" + replay(result);
            }
            case "WRITE" -> {
                List<WriteShareGroupStateRequestData.StateBatch> batches = new ArrayList<>();
                for (String each : fields[7].isEmpty() ? new String[0] : fields[7].split(";")) {
                    String[] numbers = each.split(",");
                    batches.add(new WriteShareGroupStateRequestData.StateBatch()
                        .setFirstOffset(Long.parseLong(numbers[0])).setLastOffset(Long.parseLong(numbers[1]))
                        .setDeliveryState(Byte.parseByte(numbers[2])).setDeliveryCount(Short.parseShort(numbers[3])));
                }
                var result = shard.writeState(new WriteShareGroupStateRequestData().setGroupId("g").setTopics(
                    List.of(new WriteShareGroupStateRequestData.WriteStateData().setTopicId(TOPIC).setPartitions(
                        List.of(new WriteShareGroupStateRequestData.PartitionData().setPartition(partition)
                            .setStateEpoch(Integer.parseInt(fields[3])).setLeaderEpoch(Integer.parseInt(fields[4]))
                            .setStartOffset(Long.parseLong(fields[5]))
                            .setDeliveryCompleteCount(Integer.parseInt(fields[6])).setStateBatches(batches))))));
                var row = result.response().results().get(0).partitions().get(0);
                return row.errorCode() + "||" + replay(result);
            }
            case "READ" -> {
                var result = shard.readStateAndMaybeUpdateLeaderEpoch(new ReadShareGroupStateRequestData().setGroupId("g")
                    .setTopics(List.of(new ReadShareGroupStateRequestData.ReadStateData().setTopicId(TOPIC).setPartitions(
                        List.of(new ReadShareGroupStateRequestData.PartitionData().setPartition(partition)
                            .setLeaderEpoch(Integer.parseInt(fields[3])))))));
                var row = result.response().results().get(0).partitions().get(0);
                List<String> batches = new ArrayList<>();
                row.stateBatches().forEach(each -> batches.add(each.firstOffset() + "," + each.lastOffset() + ","
                    + each.deliveryState() + "," + each.deliveryCount()));
                String state = row.errorCode() != 0 ? ""
                    : row.stateEpoch() + " " + row.startOffset() + " " + String.join(";", batches);
                return row.errorCode() + "|" + state + "|" + replay(result);
            }
            case "SUMMARY" -> {
                var result = shard.readStateSummary(new ReadShareGroupStateSummaryRequestData().setGroupId("g").setTopics(
                    List.of(new ReadShareGroupStateSummaryRequestData.ReadStateSummaryData().setTopicId(TOPIC)
                        .setPartitions(List.of(new ReadShareGroupStateSummaryRequestData.PartitionData()
                            .setPartition(partition).setLeaderEpoch(0))))));
                var row = result.response().results().get(0).partitions().get(0);
                String state = row.errorCode() != 0 ? "" : row.stateEpoch() + " " + row.leaderEpoch() + " "
                    + row.startOffset() + " " + row.deliveryCompleteCount();
                return row.errorCode() + "|" + state + "|" + replay(result);
            }
            case "DELETE" -> {
                var result = shard.deleteState(new DeleteShareGroupStateRequestData().setGroupId("g").setTopics(
                    List.of(new DeleteShareGroupStateRequestData.DeleteStateData().setTopicId(TOPIC).setPartitions(
                        List.of(new DeleteShareGroupStateRequestData.PartitionData().setPartition(partition))))));
                var row = result.response().results().get(0).partitions().get(0);
                return row.errorCode() + "||" + replay(result);
            }
            default -> {
                return "0||" + replay(shard.snapshotColdPartitions());
            }
        }
    }

    private static void open(String updatesPerSnapshot, String coldMs) {
        offset = 0;
        Time time = (Time) Proxy.newProxyInstance(Time.class.getClassLoader(), new Class<?>[] {Time.class},
            (proxy, method, values) -> now);
        CoordinatorMetadataImage.TopicMetadata topic = (CoordinatorMetadataImage.TopicMetadata) Proxy.newProxyInstance(
            Time.class.getClassLoader(), new Class<?>[] {CoordinatorMetadataImage.TopicMetadata.class},
            (proxy, method, values) -> method.getName().equals("partitionCount") ? (Object) 3 : "t");
        CoordinatorMetadataImage image = (CoordinatorMetadataImage) Proxy.newProxyInstance(
            Time.class.getClassLoader(), new Class<?>[] {CoordinatorMetadataImage.class},
            (proxy, method, values) -> Optional.of(topic));
        LogContext context = new LogContext();
        ShareCoordinatorConfig config = new ShareCoordinatorConfig(new AbstractConfig(
            ShareCoordinatorConfig.CONFIG_DEF, Map.of(
                "share.coordinator.snapshot.update.records.per.snapshot", updatesPerSnapshot,
                "share.coordinator.cold.partition.snapshot.interval.ms", coldMs), false));
        shard = (ShareCoordinatorShard) new ShareCoordinatorShard.Builder(config)
            .withSnapshotRegistry(new SnapshotRegistry(context)).withLogContext(context).withTime(time)
            .withCoordinatorMetrics(new ShareCoordinatorMetrics(new Metrics()))
            .withTopicPartition(new TopicPartition("__share_group_state", 0)).build();
        shard.onLoaded(image);
    }

    private static String replay(CoordinatorResult<?, CoordinatorRecord> result) {
        ShareCoordinatorRecordSerde serde = new ShareCoordinatorRecordSerde();
        List<String> texts = new ArrayList<>();
        for (CoordinatorRecord record : result.records()) {
            byte[] value = serde.serializeValue(record);
            texts.add(HexFormat.of().formatHex(serde.serializeKey(record)) + ":"
                + (value == null ? "" : HexFormat.of().formatHex(value)));
            shard.replay(offset++, -1, (short) -1, record);
        }
        return String.join(" ", texts);
    }
}
