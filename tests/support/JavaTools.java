import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.File;
import java.io.IOException;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.net.URL;
import java.net.URLClassLoader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;

// Exit is in the first of these packages before Kafka 4.4, and in the second one since.
import org.apache.kafka.common.utils.*;
import org.apache.kafka.common.utils.internals.*;

/**
 * Runs the main of one command-line tool after the other in one JVM, as each asks for it on standard input.
 *
 * <p>The arguments are the jars of the tools: each run loads their classes anew, since they count and latch in static
 * fields. What they stand on (clients, Scala) is on the class path and stays warm.
 *
 * <p>A request is a count of texts and the texts: main class, standard input, arguments. An answer is the exit code,
 * standard output and standard error. Numbers are big-endian int32, a text is its length and its UTF-8 bytes.
 */
public final class JavaTools {
    /** What `Exit.exit` throws where it would end the process: an Error, so that no tool takes it for a failure. */
    private static final class Ended extends Error {
        Ended() {
            super(null, null, false, false);
        }
    }

    private static final class Run {
        final ByteArrayOutputStream out = new ByteArrayOutputStream();
        final ByteArrayOutputStream err = new ByteArrayOutputStream();
        final List<Runnable> hooks = Collections.synchronizedList(new ArrayList<>());
        private byte[] outAtExit;
        private byte[] errAtExit;
        private Integer code;

        /** The first exit counts: the process would not have lived to see another, nor what is written on the way. */
        synchronized void exit(int wanted) {
            if (code == null) {
                code = wanted;
                outAtExit = out.toByteArray();
                errAtExit = err.toByteArray();
            }
            throw new Ended();
        }

        synchronized int finish() throws IOException {
            if (code == null)
                return 0;
            out.reset();
            err.reset();
            out.write(outAtExit);
            err.write(errAtExit);
            return code;
        }

        synchronized boolean hasExited() {
            return code != null;
        }
    }

    public static void main(String[] jars) throws Exception {
        DataInputStream requests = new DataInputStream(System.in);
        DataOutputStream answers = new DataOutputStream(System.out);
        URL[] tools = new URL[jars.length];
        for (int i = 0; i < jars.length; i++)
            tools[i] = new File(jars[i]).toURI().toURL();
        while (true) {
            int count;
            try {
                count = requests.readInt();
            } catch (EOFException over) {
                // Whatever thread a tool has left must not keep the process.
                Runtime.getRuntime().halt(0);
                return;
            }
            String[] texts = new String[count];
            for (int i = 0; i < count; i++)
                texts[i] = new String(requests.readNBytes(requests.readInt()), "UTF-8");
            Run run = new Run();
            int code = run(run, tools, texts);
            answers.writeInt(code);
            for (byte[] wrote : List.of(run.out.toByteArray(), run.err.toByteArray())) {
                answers.writeInt(wrote.length);
                answers.write(wrote);
            }
            answers.flush();
        }
    }

    private static int run(Run run, URL[] tools, String[] texts) throws Exception {
        PrintStream out = new PrintStream(run.out, true);
        PrintStream err = new PrintStream(run.err, true);
        System.setIn(new ByteArrayInputStream(texts[1].getBytes("UTF-8")));
        System.setOut(out);
        System.setErr(err);
        Exit.setExitProcedure((code, message) -> run.exit(code));
        Exit.setHaltProcedure((code, message) -> run.exit(code));
        Exit.setShutdownHookAdder((name, hook) -> run.hooks.add(hook));
        ThreadGroup group = new ThreadGroup("tool");
        try (URLClassLoader loader = new URLClassLoader(tools, JavaTools.class.getClassLoader())) {
            Thread thread = new Thread(group, () -> call(run, loader, texts), "main");
            thread.setContextClassLoader(loader);
            thread.start();
            thread.join();
            // A JVM whose main has returned lives as long as its other threads.
            if (!run.hasExited())
                for (Thread each : others(group))
                    each.join();
            int code = run.finish();
            for (Runnable hook : run.hooks)
                hook.run();
            return code;
        }
    }

    private static void call(Run run, ClassLoader loader, String[] texts) {
        try {
            Object arguments = Arrays.copyOfRange(texts, 2, texts.length);
            loader.loadClass(texts[0]).getMethod("main", String[].class).invoke(null, arguments);
        } catch (InvocationTargetException wrapped) {
            if (run.hasExited())
                return;
            System.err.print("Exception in thread \"main\" ");
            wrapped.getCause().printStackTrace();
            endWith(run, 1);
        } catch (ReflectiveOperationException problem) {
            problem.printStackTrace();
            endWith(run, 1);
        }
    }

    private static void endWith(Run run, int code) {
        try {
            run.exit(code);
        } catch (Ended ended) {
            return;
        }
    }

    private static List<Thread> others(ThreadGroup group) {
        Thread[] found = new Thread[group.activeCount() + 16];
        List<Thread> others = new ArrayList<>();
        for (Thread each : Arrays.copyOf(found, group.enumerate(found)))
            if (!each.isDaemon())
                others.add(each);
        return others;
    }
}
