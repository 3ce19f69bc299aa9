import java.time.Duration;
import java.util.HashSet;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;

import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A member of a share group that does with each record what the record says, until its standard input ends.
 *
 * <p>The first letter of a record's value is its rule: `a` accept; `r` reject; `l3` release three times, then accept;
 * `L` release always; `n` renew once, then accept. In implicit mode every record is accepted by the next poll.
 *
 * <p>Arguments: bootstrap, group, topics with commas, `implicit`, `sync` or `async`, further settings as name=value.
 * Prints, with the time in ms and neighbouring offsets together:
 * `d TIME TOPIC PARTITION FIRST LAST COUNT RULE ACTION` for records that a poll returned, and
 * `k TIME TOPIC PARTITION FIRST LAST ERROR` for acknowledgements that were answered (`-`: no error).
 */
public final class ShareMember {
    private static volatile boolean over;
    private static final Set<String> renewed = new HashSet<>();
    private static String pending;
    private static long pendingFirst;
    private static long pendingLast;
    private static String pendingEnd;

    public static void main(String[] args) throws Exception {
        String mode = args[3];
        boolean explicit = !mode.equals("implicit");
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[1]);
        settings.put("share.acknowledgement.mode", explicit ? "explicit" : "implicit");
        settings.put("reconnect.backoff.max.ms", "200");
        settings.put("fetch.max.wait.ms", "200");
        for (int i = 4; i < args.length; i++) {
            String[] parts = args[i].split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        Thread input = new Thread(ShareMember::awaitEnd);
        input.setDaemon(true);
        input.start();
        StringDeserializer text = new StringDeserializer();
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(settings, text, text)) {
            consumer.setAcknowledgementCommitCallback((offsets, error) -> {
                String end = " " + (error == null ? "-" : error.getClass().getSimpleName());
                offsets.forEach((part, found) -> {
                    for (long offset : new TreeSet<>(found))
                        say("k", part.topic(), part.partition(), offset, end);
                });
                flush();
            });
            consumer.subscribe(Set.of(args[2].split(",")));
            System.out.println("ready");
            while (!over)
                turn(consumer, explicit, mode.equals("sync"));
        }
        System.out.println("closed");
    }

    private static void awaitEnd() {
        try {
            while (System.in.read() >= 0)
                continue;
        } catch (java.io.IOException end) {
            // The parent has died.
        }
        over = true;
    }

    private static void turn(KafkaShareConsumer<String, String> consumer, boolean explicit, boolean sync) {
        ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
        for (ConsumerRecord<String, String> record : records) {
            int count = record.deliveryCount().orElse((short) 0);
            AcknowledgeType action = explicit ? action(record, count) : AcknowledgeType.ACCEPT;
            String rule = record.value().substring(0, 1);
            say("d", record.topic(), record.partition(), record.offset(), " " + count + " " + rule + " " + action.name());
            if (explicit)
                consumer.acknowledge(record, action);
        }
        flush();
        if (sync && !records.isEmpty())
            consumer.commitSync();
        else if (explicit && !records.isEmpty())
            consumer.commitAsync();
    }

    private static AcknowledgeType action(ConsumerRecord<String, String> record, int count) {
        String value = record.value();
        switch (value.charAt(0)) {
            case 'r':
                return AcknowledgeType.REJECT;
            case 'L':
                return AcknowledgeType.RELEASE;
            case 'l':
                return count <= value.charAt(1) - '0' ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT;
            case 'n':
                String name = record.topic() + " " + record.partition() + " " + record.offset() + " " + count;
                return renewed.add(name) ? AcknowledgeType.RENEW : AcknowledgeType.ACCEPT;
            default:
                return AcknowledgeType.ACCEPT;
        }
    }

    /** Neighbouring offsets of which the same is to be said become one line. */
    private static void say(String kind, String topic, int partition, long offset, String end) {
        String key = kind + " " + System.currentTimeMillis() + " " + topic + " " + partition + " ";
        boolean joins = pending != null && end.equals(pendingEnd) && offset == pendingLast + 1
            && key.substring(16).equals(pending.substring(16)) && pending.startsWith(kind);
        if (joins) {
            pendingLast = offset;
            return;
        }
        flush();
        pending = key;
        pendingFirst = pendingLast = offset;
        pendingEnd = end;
    }

    private static void flush() {
        if (pending != null)
            System.out.println(pending + pendingFirst + " " + pendingLast + pendingEnd);
        pending = null;
    }
}
