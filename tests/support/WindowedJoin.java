import java.time.Duration;
import java.util.Properties;
import java.util.TreeSet;

import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.ThreadMetadata;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TimeWindows;

/**
 * Joins orders with payments of the same id within 5 s of event time, and counts them by region and minute, exactly
 * once, until its standard input ends. Each new count is a record "region@minute" = "count".
 *
 * <p>With the topology "copy" it copies orders to counts without any state, so that the topic can grow.
 *
 * <p>Arguments: bootstrap, application id, group protocol, topology, state directory, threads, further settings as
 * name=value. Prints "state NAME" and "tasks ID..." whenever they change.
 */
public final class WindowedJoin {
    private static final Duration NEVER_LATE = Duration.ofDays(1);

    public static void main(String[] args) throws Exception {
        KafkaStreams streams = new KafkaStreams(topology(args[3]).build(), settings(args));
        streams.setUncaughtExceptionHandler(problem -> {
            problem.printStackTrace();
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.setStateListener((now, before) -> say("state " + now));
        streams.start();
        Thread watcher = new Thread(() -> sayTasks(streams));
        watcher.setDaemon(true);
        watcher.start();
        while (System.in.read() >= 0)
            continue;
        streams.close(Duration.ofSeconds(20));
    }

    private static Properties settings(String[] args) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("application.id", args[1]);
        settings.put("group.protocol", args[2]);
        settings.put("state.dir", args[4]);
        settings.put("num.stream.threads", args[5]);
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("commit.interval.ms", "500");
        settings.put("statestore.cache.max.bytes", "0"); // Every count goes out, not the last of a commit alone.
        settings.put("replication.factor", "1");
        settings.put("default.key.serde", Serdes.StringSerde.class.getName());
        settings.put("default.value.serde", Serdes.StringSerde.class.getName());
        settings.put("consumer.auto.offset.reset", "earliest");
        settings.put("metadata.max.age.ms", "1000"); // Classic members find new partitions by it.
        settings.put("reconnect.backoff.max.ms", "200");
        settings.put("request.timeout.ms", "10000");
        if (args[2].equals("classic")) { // The coordinator has these in the other protocol.
            settings.put("consumer.session.timeout.ms", "6000");
            settings.put("consumer.heartbeat.interval.ms", "500");
        }
        for (int i = 6; i < args.length; i++) {
            String[] parts = args[i].split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        return settings;
    }

    private static StreamsBuilder topology(String name) {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> orders = builder.stream("orders");
        if (name.equals("copy")) {
            orders.to("counts");
            return builder;
        }
        KStream<String, String> payments = builder.stream("payments");
        orders
            .join(
                payments,
                (region, amount) -> region,
                JoinWindows.ofTimeDifferenceAndGrace(Duration.ofSeconds(5), NEVER_LATE),
                StreamJoined.<String, String, String>as("paid").withName("paid"))
            .groupBy((id, region) -> region, Grouped.as("by-region"))
            .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMinutes(1), NEVER_LATE))
            .count(Materialized.as("per-minute"))
            .toStream((window, count) -> window.key() + "@" + window.window().start() / 60_000)
            .mapValues(String::valueOf)
            .to("counts");
        return builder;
    }

    private static void sayTasks(KafkaStreams streams) {
        TreeSet<String> before = new TreeSet<>();
        while (true) {
            TreeSet<String> now = new TreeSet<>();
            for (ThreadMetadata thread : streams.metadataForLocalThreads())
                thread.activeTasks().forEach(task -> now.add(task.taskId().toString()));
            if (!now.equals(before))
                say("tasks " + String.join(" ", now));
            before = now;
            try {
                Thread.sleep(100);
            } catch (InterruptedException end) {
                return;
            }
        }
    }

    private static synchronized void say(String line) {
        System.out.println(line);
    }
}
