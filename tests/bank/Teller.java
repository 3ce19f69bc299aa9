import java.util.Properties;
import java.util.Random;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.serialization.StringSerializer;

/** Makes transfers until its standard input ends; a line for each outcome. See tellers.py. */
public final class Teller {
    private static volatile boolean ending = false;

    public static void main(String[] args) throws Exception {
        String topic = args[1];
        String name = args[2];
        int partitions = Integer.parseInt(args[3]);
        int accounts = Integer.parseInt(args[4]);
        Random random = new Random(Long.parseLong(args[6]));
        Thread watcher = new Thread(() -> {
            try {
                while (System.in.read() >= 0)
                    continue;
            } catch (java.io.IOException closed) {
                // As good as its end.
            }
            ending = true;
        });
        watcher.setDaemon(true);
        watcher.start();
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("transactional.id", name);
        settings.put("transaction.timeout.ms", args[5]);
        settings.put("delivery.timeout.ms", args[5]);
        settings.put("request.timeout.ms", "10000");
        settings.put("max.block.ms", "30000");
        settings.put("linger.ms", "0");
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        boolean clean = false;
        int count = 0;
        while (!(ending && clean)) {
            try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
                producer.initTransactions();
                clean = true;
                while (!ending) {
                    clean = false;
                    String transfer = name + "-" + ++count;
                    int giver = random.nextInt(accounts);
                    int taker = (giver + 1 + random.nextInt(accounts - 1)) % accounts;
                    int amount = 1 + random.nextInt(100);
                    boolean kept = random.nextDouble() >= 0.2;
                    say("unknown " + transfer);
                    producer.beginTransaction();
                    try {
                        send(producer, topic, partitions, transfer, giver, -amount);
                        send(producer, topic, partitions, transfer, taker, amount);
                        if (kept) {
                            producer.commitTransaction();
                            say("committed " + transfer);
                        }
                    } catch (ApiException error) {
                        say("error " + error.getClass().getSimpleName());
                        kept = false;
                        if (error instanceof org.apache.kafka.common.errors.TimeoutException)
                            throw error; // The outcome is not known.
                    }
                    if (!kept) {
                        producer.abortTransaction();
                        say("aborted " + transfer);
                    }
                    clean = true;
                    Thread.sleep(20);
                }
            } catch (KafkaException error) {
                say("error " + error.getClass().getSimpleName());
            }
        }
    }

    private static void send(
            KafkaProducer<String, String> producer, String topic, int partitions, String transfer, int account, int amount) {
        String value = transfer + "|" + account + "|" + amount;
        producer.send(new ProducerRecord<>(topic, account % partitions, String.valueOf(account), value));
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
