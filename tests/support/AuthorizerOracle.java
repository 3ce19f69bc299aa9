import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.metadata.authorizer.StandardAuthorizerData;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;

/**
 * Kafka's own authorizer as an oracle. Lines of fields between tabs come in:
 *
 *   NEW allowEveryone superUsers                                       another authorizer, without rules
 *   ACL type name pattern principal host operation permission          one of its rules
 *   ASK principalType principalName host operation type name apiKey    answered by the line of its audit log
 *   ANY principalType principalName host operation type                answered by ALLOWED or DENIED
 */
public class AuthorizerOracle {
    private record Client(KafkaPrincipal principal, InetAddress clientAddress, int requestType)
            implements AuthorizableRequestContext {
        public String listenerName() { return "L"; }
        public SecurityProtocol securityProtocol() { return SecurityProtocol.PLAINTEXT; }
        public int requestVersion() { return 0; }
        public String clientId() { return "c"; }
        public int correlationId() { return 0; }
    }

    private static StandardAuthorizer authorizer;
    private static Map<Uuid, StandardAcl> rules;

    public static void main(String[] arguments) throws Exception {
        Field dataField = StandardAuthorizer.class.getDeclaredField("data");
        Method find = StandardAuthorizerData.class.getDeclaredMethod("findAclRule", Set.class, String.class, Action.class);
        Field superUsers = StandardAuthorizerData.class.getDeclaredField("superUsers");
        Class<?> ruleClass = Class.forName("org.apache.kafka.metadata.authorizer.StandardAuthorizerData$MatchingRule");
        Class<?> superClass = Class.forName("org.apache.kafka.metadata.authorizer.StandardAuthorizerData$SuperUserRule");
        Field superRule = superClass.getDeclaredField("INSTANCE");
        Method message = StandardAuthorizerData.class.getDeclaredMethod(
            "buildAuditMessage", KafkaPrincipal.class, AuthorizableRequestContext.class, Action.class, ruleClass);
        dataField.setAccessible(true);
        find.setAccessible(true);
        superUsers.setAccessible(true);
        superRule.setAccessible(true);
        message.setAccessible(true);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StringBuilder out = new StringBuilder();
        boolean isLoaded = false;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] f = line.split("\t", -1);
            if (f[0].equals("NEW")) {
                authorizer = new StandardAuthorizer();
                Map<String, String> settings = new HashMap<>();
                settings.put("node.id", "1");
                settings.put("allow.everyone.if.no.acl.found", f[1]);
                settings.put("super.users", f[2]);
                authorizer.configure(settings);
                authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), new LinkedHashMap<>()));
                rules = new HashMap<>();
                isLoaded = false;
                continue;
            }
            if (f[0].equals("ACL")) {
                rules.put(Uuid.randomUuid(), new StandardAcl(
                    ResourceType.valueOf(f[1]), f[2], PatternType.valueOf(f[3]), f[4], f[5],
                    AclOperation.valueOf(f[6]), AclPermissionType.valueOf(f[7])));
                continue;
            }
            if (!isLoaded) {
                authorizer.loadSnapshot(rules);
                authorizer.completeInitialLoad();
                isLoaded = true;
            }
            boolean isAny = f[0].equals("ANY");
            KafkaPrincipal principal = new KafkaPrincipal(f[1], f[2]);
            Client client = new Client(principal, InetAddress.getByName(f[3]), isAny ? 22 : Integer.parseInt(f[7]));
            AclOperation operation = AclOperation.valueOf(f[4]);
            ResourceType type = ResourceType.valueOf(f[5]);
            if (isAny) {
                out.append(authorizer.authorizeByResourceType(client, operation, type)).append('\n');
                continue;
            }
            Action action = new Action(operation, new ResourcePattern(type, f[6], PatternType.LITERAL), 1, true, true);
            Object data = dataField.get(authorizer);
            Object rule = ((Set<?>) superUsers.get(data)).contains(principal.toString())
                ? superRule.get(null)
                : find.invoke(data, Set.of(principal, new KafkaPrincipal("User", "*")), f[3], action);
            out.append((String) message.invoke(data, principal, client, action, rule)).append('\n');
        }
        System.out.print(out);
    }
}
