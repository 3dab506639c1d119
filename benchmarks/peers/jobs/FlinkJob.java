import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.sql.Types;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;

import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.jdbc.JdbcExactlyOnceOptions;
import org.apache.flink.connector.jdbc.JdbcExecutionOptions;
import org.apache.flink.connector.jdbc.core.datastream.sink.JdbcSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.formats.common.TimestampFormat;
import org.apache.flink.formats.json.JsonRowDataDeserializationSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.BigIntType;
import org.apache.flink.table.types.logical.IntType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.SmallIntType;
import org.apache.flink.table.types.logical.VarCharType;
import org.apache.flink.util.function.SerializableSupplier;

/**
 * A topic of JSON into a table: {@code append} and {@code upsert} with Flink SQL, {@code xa} with a DataStream job.
 * The job runs twice: into TABLE_warm, then into TABLE. Prints "FIRST millis" when the second run reads its first record.
 */
public class FlinkJob {

    private static final Map<String, String> ENV = System.getenv();
    private static final String TOPIC = ENV.get("PEER_TOPIC");
    private static final AtomicBoolean FIRST = new AtomicBoolean();

    public static void main(String[] args) throws Exception {
        for (String table : new String[] {TOPIC + "_warm", TOPIC}) {
            FIRST.set(table.equals(TOPIC));
            if (args[0].equals("xa")) {
                exactlyOnce(table);
            } else {
                withSql(table, args[0].equals("upsert"));
            }
        }
    }

    private static StreamExecutionEnvironment environment() {
        Configuration conf = new Configuration();
        conf.setString("pipeline.object-reuse", "true");
        conf.setString("taskmanager.memory.managed.size", "64m");
        conf.setString("taskmanager.memory.network.min", "64m");
        conf.setString("taskmanager.memory.network.max", "64m");
        int slots = Integer.parseInt(ENV.get("PEER_PARALLELISM"));
        StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(slots, conf);
        env.enableCheckpointing(Long.parseLong(ENV.get("PEER_CHECKPOINT")));
        return env;
    }

    private static void withSql(String table, boolean upsert) throws Exception {
        StreamTableEnvironment t = StreamTableEnvironment.create(environment());
        String columns = ENV.get("PEER_COLUMNS");
        t.executeSql("CREATE TABLE source (" + columns + ") WITH ('connector'='kafka', 'topic'='" + TOPIC
            + "', 'properties.bootstrap.servers'='" + ENV.get("PEER_BROKERS")
            + "', 'properties.group.id'='" + ENV.get("PEER_GROUP")
            + "', 'scan.startup.mode'='earliest-offset', 'scan.bounded.mode'='latest-offset', 'format'='json')");
        t.executeSql("CREATE TABLE sink (" + columns + (upsert ? ", PRIMARY KEY (id) NOT ENFORCED" : "")
            + ") WITH ('connector'='jdbc', 'url'='" + ENV.get("PEER_URL")
            + "', 'username'='" + ENV.get("PEER_USER") + "', 'password'='" + ENV.get("PEER_PASSWORD")
            + "', 'table-name'='" + table + "', 'sink.buffer-flush.max-rows'='" + ENV.get("PEER_BATCH")
            + "', 'sink.buffer-flush.interval'='1s')");
        t.executeSql("INSERT INTO sink SELECT * FROM source").await();
    }

    private static void exactlyOnce(String table) throws Exception {
        RowType type = rowType();
        KafkaSource<RowData> source = KafkaSource.<RowData>builder()
            .setBootstrapServers(ENV.get("PEER_BROKERS"))
            .setTopics(TOPIC)
            .setGroupId(ENV.get("PEER_GROUP"))
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setBounded(OffsetsInitializer.latest())
            .setValueOnlyDeserializer(new JsonRowDataDeserializationSchema(
                type, InternalTypeInfo.of(type), false, false, TimestampFormat.ISO_8601))
            .build();
        StreamExecutionEnvironment env = environment();
        env.fromSource(source, WatermarkStrategy.noWatermarks(), "source")
            .map(FlinkJob::noteFirst).returns(InternalTypeInfo.of(type))
            .sinkTo(JdbcSink.<RowData>builder()
                .withQueryStatement(insert(table, type), (statement, row) -> bind(statement, row, type))
                .withExecutionOptions(JdbcExecutionOptions.builder()
                    .withBatchSize(Integer.parseInt(ENV.get("PEER_BATCH")))
                    .withBatchIntervalMs(1000)
                    .withMaxRetries(0)
                    .build())
                .buildExactlyOnce(
                    JdbcExactlyOnceOptions.builder().withTransactionPerConnection(true).build(), dataSource()));
        env.execute(table);
    }

    private static RowData noteFirst(RowData row) {
        if (FIRST.get() && FIRST.compareAndSet(true, false)) {
            System.out.println("FIRST " + System.currentTimeMillis());
        }
        return row;
    }

    /** "`id` BIGINT, `tailnum` STRING" */
    private static RowType rowType() {
        List<RowType.RowField> fields = new ArrayList<>();
        for (String column : ENV.get("PEER_COLUMNS").split(", ")) {
            String[] parts = column.split(" ");
            LogicalType type = switch (parts[1]) {
                case "BIGINT" -> new BigIntType();
                case "INT" -> new IntType();
                case "SMALLINT" -> new SmallIntType();
                default -> new VarCharType(VarCharType.MAX_LENGTH);
            };
            fields.add(new RowType.RowField(parts[0].replace("`", ""), type));
        }
        return new RowType(fields);
    }

    private static String insert(String table, RowType type) {
        String columns = type.getFieldNames().stream().map(c -> "\"" + c + "\"").collect(Collectors.joining(", "));
        String marks = String.join(", ", Collections.nCopies(type.getFieldCount(), "?"));
        return "INSERT INTO " + table + " (" + columns + ") VALUES (" + marks + ")";
    }

    private static void bind(PreparedStatement statement, RowData row, RowType type) throws SQLException {
        for (int i = 0; i < type.getFieldCount(); i++) {
            LogicalType field = type.getTypeAt(i);
            if (row.isNullAt(i)) {
                statement.setNull(i + 1, Types.OTHER);
            } else if (field instanceof BigIntType) {
                statement.setLong(i + 1, row.getLong(i));
            } else if (field instanceof IntType) {
                statement.setInt(i + 1, row.getInt(i));
            } else if (field instanceof SmallIntType) {
                statement.setShort(i + 1, row.getShort(i));
            } else {
                statement.setString(i + 1, row.getString(i).toString());
            }
        }
    }

    private static SerializableSupplier<javax.sql.XADataSource> dataSource() {
        return () -> {
            org.postgresql.xa.PGXADataSource source = new org.postgresql.xa.PGXADataSource();
            source.setServerNames(new String[] {ENV.get("PEER_HOST")});
            source.setPortNumbers(new int[] {Integer.parseInt(ENV.get("PEER_PORT"))});
            source.setDatabaseName(ENV.get("PEER_DATABASE"));
            source.setUser(ENV.get("PEER_USER"));
            source.setPassword(ENV.get("PEER_PASSWORD"));
            source.setReWriteBatchedInserts(true);
            source.setStringType("unspecified");
            return source;
        };
    }
}
