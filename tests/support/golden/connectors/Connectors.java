import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.lang.reflect.Proxy;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Timestamp;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.Base64;
import java.util.BitSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;

import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.io.EncoderFactory;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.transforms.ReplaceField;
import org.bson.BsonDocument;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import io.apicurio.registry.utils.converter.avro.AvroData;
import io.debezium.config.CommonConnectorConfig.EventConvertingFailureHandlingMode;
import io.debezium.config.Configuration;
import io.debezium.connector.binlog.BinlogConnectorConfig;
import io.debezium.connector.binlog.charset.BinlogCharsetRegistry;
import io.debezium.connector.mariadb.MariaDbConnectorConfig;
import io.debezium.connector.mariadb.antlr.MariaDbAntlrDdlParser;
import io.debezium.connector.mariadb.jdbc.MariaDbValueConverters;
import io.debezium.connector.mongodb.MongoDbCollectionSchema;
import io.debezium.connector.mongodb.CollectionId;
import io.debezium.connector.mongodb.MongoDbConnectorConfig;
import io.debezium.connector.mongodb.MongoDbSchema;
import io.debezium.connector.mongodb.MongoDbTaskContext;
import io.debezium.connector.mongodb.transforms.ExtractNewDocumentState;
import io.debezium.connector.mysql.MySqlConnectorConfig;
import io.debezium.connector.mysql.antlr.MySqlAntlrDdlParser;
import io.debezium.connector.mysql.jdbc.MySqlValueConverters;
import io.debezium.connector.oracle.OracleConnection;
import io.debezium.connector.oracle.OracleConnectorConfig;
import io.debezium.connector.oracle.OracleValueConverters;
import io.debezium.connector.oracle.antlr.OracleDdlParser;
import io.debezium.connector.sqlserver.SqlServerConnectorConfig;
import io.debezium.connector.sqlserver.SqlServerValueConverters;
import io.debezium.data.Envelope.Operation;
import io.debezium.jdbc.JdbcConfiguration;
import io.debezium.pipeline.spi.OffsetContext;
import io.debezium.pipeline.spi.Partition;
import io.debezium.relational.Column;
import io.debezium.relational.CustomConverterRegistry;
import io.debezium.relational.RelationalChangeRecordEmitter;
import io.debezium.relational.RelationalDatabaseConnectorConfig;
import io.debezium.relational.Table;
import io.debezium.relational.TableId;
import io.debezium.relational.TableSchema;
import io.debezium.relational.TableSchemaBuilder;
import io.debezium.relational.Tables;
import io.debezium.relational.ValueConverterProvider;
import io.debezium.relational.ddl.DdlParser;
import io.debezium.schema.SchemaNameAdjuster;
import io.debezium.util.Clock;

/**
 * Writes events of tables and documents by Debezium's own classes: its parsers of DDL, its connectors' value
 * converters, schema builders and emitters of changes; then Kafka's JsonConverter and Apicurio's AvroData. The values
 * are of the classes that the connectors read from a binlog, a CDC table or LogMiner. No database is asked.
 */
public final class Connectors {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Instant NOW = Instant.ofEpochMilli(1_700_000_000_000L);
    private static final List<Map<String, String>> SETTINGS = List.of(
            Map.of(),
            Map.of("decimal.handling.mode", "string", "time.precision.mode", "connect",
                    "interval.handling.mode", "string", "bigint.unsigned.handling.mode", "precise"),
            Map.of("decimal.handling.mode", "double", "time.precision.mode", "isostring"));

    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[0]);
        for (int n = 0; n < SETTINGS.size(); n++) {
            String name = List.of("", "_string_connect", "_double_isostring").get(n);
            mysql(SETTINGS.get(n)).write(folder.resolve("mysql" + name + ".jsonl"));
            mariadb(SETTINGS.get(n)).write(folder.resolve("mariadb" + name + ".jsonl"));
            sqlServer(SETTINGS.get(n)).write(folder.resolve("sqlserver" + name + ".jsonl"));
            oracle(SETTINGS.get(n)).write(folder.resolve("oracle" + name + ".jsonl"));
        }
        mongodb(folder);
    }

    private static Configuration settings(Map<String, String> settings, String... more) {
        Configuration.Builder builder = Configuration.from(settings).edit().with("topic.prefix", "dbz");
        for (int n = 0; n < more.length; n += 2) {
            builder.with(more[n], more[n + 1]);
        }
        return builder.build();
    }

    private static Events mysql(Map<String, String> settings) throws Exception {
        MySqlConnectorConfig config = new MySqlConnectorConfig(settings(settings));
        return binlog(config, new MySqlAntlrDdlParser(false, false, true, Tables.TableFilter.includeAll(), charsets(config)),
                new MySqlValueConverters(config.getDecimalMode(), config.getTemporalPrecisionMode(),
                        config.getBigIntUnsignedHandlingMode().asBigIntUnsignedMode(), config.binaryHandlingMode(), x -> x,
                        EventConvertingFailureHandlingMode.FAIL, config.getServiceRegistry()));
    }

    private static Events mariadb(Map<String, String> settings) throws Exception {
        MariaDbConnectorConfig config = new MariaDbConnectorConfig(settings(settings));
        return binlog(config, new MariaDbAntlrDdlParser(false, false, true, Tables.TableFilter.includeAll(), charsets(config)),
                new MariaDbValueConverters(config.getDecimalMode(), config.getTemporalPrecisionMode(),
                        config.getBigIntUnsignedHandlingMode().asBigIntUnsignedMode(), config.binaryHandlingMode(), x -> x,
                        EventConvertingFailureHandlingMode.FAIL, config.getServiceRegistry()));
    }

    private static BinlogCharsetRegistry charsets(BinlogConnectorConfig config) {
        return config.getServiceRegistry().getService(BinlogCharsetRegistry.class);
    }

    private static Events binlog(BinlogConnectorConfig config, DdlParser parser, ValueConverterProvider values) throws Exception {
        Tables tables = new Tables();
        parser.setCurrentDatabase("shop");
        parser.parse("CREATE TABLE everything (id BIGINT PRIMARY KEY, tiny TINYINT, flag TINYINT(1), utiny TINYINT UNSIGNED, "
                + "n INT UNSIGNED, ubig BIGINT UNSIGNED, amount DECIMAL(10,2), f FLOAT, d DOUBLE, day DATE, t TIME(6), "
                + "ts DATETIME(6), ts3 DATETIME(3), tstz TIMESTAMP(6) NULL, y YEAR, e ENUM('a','b'), s SET('x','y','z'), "
                + "j JSON, onebit BIT(1), bits BIT(9), bin VARBINARY(10), fixed BINARY(4), bl BLOB, txt TEXT CHARACTER SET utf8mb4, "
                + "p POINT, g GEOMETRY)", tables);
        Table table = tables.forTable(new TableId("shop", null, "everything"));
        byte[] point = HexFormat.of().parseHex("e6100000" + "0101000000" + "000000000000f83f" + "00000000000000c0");
        Object[] full = {2L, -128, 1, -1, -1, -1L, new BigDecimal("12345.60"), 0.1f, 0.1, LocalDate.of(2024, 2, 29),
            Duration.ofNanos(86_399_123_456_000L), LocalDateTime.of(2024, 2, 29, 23, 59, 59, 123_456_000),
            LocalDateTime.of(2024, 2, 29, 23, 59, 59, 123_000_000), OffsetDateTime.parse("2024-02-29T23:59:59.123456Z"),
            2024, 2, 5L, "{\"a\": [1, 2.50]}", bits(0), bits(0, 8), bytes(0, 255, 16), bytes(1, 2, 0, 0), bytes(1, 0),
            "ä €".getBytes(StandardCharsets.UTF_8), point, point};
        return new Events(config, table, values, full, source -> source.put("file", "mysql-bin.000003").put("pos", 154L)
                .put("row", 0).put("server_id", 1L), "amount", new BigDecimal("-0.01"));
    }

    private static Events sqlServer(Map<String, String> settings) throws Exception {
        SqlServerConnectorConfig config = new SqlServerConnectorConfig(settings(settings, "database.names", "shop"));
        List<Column> columns = new ArrayList<>();
        columns.add(column("id", "bigint", java.sql.Types.BIGINT, 19, 0, false));
        columns.add(column("tiny", "tinyint", java.sql.Types.TINYINT, 3, 0, true));
        columns.add(column("flag", "bit", java.sql.Types.BIT, 1, 0, true));
        columns.add(column("amount", "decimal", java.sql.Types.DECIMAL, 10, 2, true));
        columns.add(column("cash", "money", microsoft.sql.Types.MONEY, 19, 4, true));
        columns.add(column("r", "real", java.sql.Types.REAL, 24, null, true));
        columns.add(column("d", "float", java.sql.Types.DOUBLE, 53, null, true));
        columns.add(column("day", "date", java.sql.Types.DATE, 10, 0, true));
        columns.add(column("t", "time", java.sql.Types.TIME, 16, 7, true));
        columns.add(column("t3", "time", java.sql.Types.TIME, 12, 3, true));
        columns.add(column("ts", "datetime2", java.sql.Types.TIMESTAMP, 27, 7, true));
        columns.add(column("finer", "datetime2", java.sql.Types.TIMESTAMP, 27, 7, true));
        columns.add(column("small", "smalldatetime", java.sql.Types.TIMESTAMP, 16, 0, true));
        columns.add(column("tstz", "datetimeoffset", microsoft.sql.Types.DATETIMEOFFSET, 34, 7, true));
        columns.add(column("finertz", "datetimeoffset", microsoft.sql.Types.DATETIMEOFFSET, 34, 7, true));
        columns.add(column("u", "uniqueidentifier", java.sql.Types.CHAR, 36, null, true));
        columns.add(column("x", "xml", java.sql.Types.LONGNVARCHAR, 100, null, true));
        columns.add(column("bin", "varbinary", java.sql.Types.VARBINARY, 10, null, true));
        columns.add(column("txt", "nvarchar", java.sql.Types.NVARCHAR, 10, null, true));
        Table table = Table.editor().tableId(new TableId("shop", "dbo", "everything")).addColumns(columns)
                .setPrimaryKeyNames("id").create();
        ValueConverterProvider values = new SqlServerValueConverters(config.getDecimalMode(),
                config.getTemporalPrecisionMode(), config.binaryHandlingMode());
        Object[] full = {2L, (short) 255, true, new BigDecimal("12345.60"), new BigDecimal("0.0001"), 0.1f, 0.1,
            java.sql.Date.valueOf("2024-02-29"), nanos("1970-01-01 23:59:59.123456"), nanos("1970-01-01 12:34:56.789"),
            nanos("2024-02-29 23:59:59.123456"), nanos("2024-02-29 23:59:59.1234567"), nanos("2024-02-29 23:59:00"),
            microsoft.sql.DateTimeOffset.valueOf(nanos("2024-02-29 23:59:59.123456"), 120),
            microsoft.sql.DateTimeOffset.valueOf(nanos("2024-02-29 23:59:59.1234567"), 120),
            "0190D5B0-0000-7000-8000-000000000001", "<a/>", bytes(0, 255, 16), "ä €"};
        return new Events(config, table, values, full, source -> source.put("schema", "dbo")
                .put("change_lsn", "00000027:00000758:0003").put("commit_lsn", "00000027:00000758:0005")
                .put("event_serial_no", 1L), "amount", new BigDecimal("-0.01"));
    }

    private static Events oracle(Map<String, String> settings) throws Exception {
        OracleConnectorConfig config = new OracleConnectorConfig(settings(settings, "database.dbname", "SHOP"));
        OracleConnection connection = new OracleConnection(JdbcConfiguration.empty(), false) {
            @Override
            public oracle.sql.CharacterSet getNationalCharacterSet() {
                return oracle.sql.CharacterSet.make(oracle.sql.CharacterSet.AL16UTF16_CHARSET);
            }
        };
        OracleValueConverters values = new OracleValueConverters(config, connection);
        Tables tables = new Tables();
        OracleDdlParser parser = new OracleDdlParser(values);
        parser.setCurrentDatabase("SHOP");
        parser.setCurrentSchema("DBO");
        parser.parse("CREATE TABLE EVERYTHING (ID NUMBER(18,0), TINY NUMBER(2,0), HUNDREDS NUMBER(5,-2), AMOUNT NUMBER(10,2), "
                + "ANYNUM NUMBER, WHOLE NUMBER(38,0), FL FLOAT(126), BF BINARY_FLOAT, BD BINARY_DOUBLE, NAN BINARY_DOUBLE, DAY DATE, "
                + "TS TIMESTAMP(6), TS3 TIMESTAMP(3), FINER TIMESTAMP(9), TSTZ TIMESTAMP(6) WITH TIME ZONE, "
                + "FINERTZ TIMESTAMP(9) WITH TIME ZONE, YM INTERVAL YEAR TO MONTH, DS INTERVAL DAY TO SECOND, BIN RAW(10), "
                + "TXT VARCHAR2(10), CL CLOB, PRIMARY KEY (ID));", tables);
        Table table = tables.forTable(new TableId("SHOP", "DBO", "EVERYTHING"));
        Object[] full = {"2", "-99", "12300", "12345.60", "0.12345678901234567890", "12345678901234567890", "1.5", "0.1",
            "0.1", Double.NaN, "TO_DATE('2024-02-29 23:59:59', 'YYYY-MM-DD HH24:MI:SS')",
            "TO_TIMESTAMP('2024-02-29 23:59:59.123456')", "TO_TIMESTAMP('2024-02-29 23:59:59.123')",
            "TO_TIMESTAMP('2024-02-29 23:59:59.123456789')", "TO_TIMESTAMP_TZ('2024-02-29 23:59:59.123456 +02:00')",
            "TO_TIMESTAMP_TZ('2024-02-29 23:59:59.123456789 +02:00')", "TO_YMINTERVAL('+01-02')",
            "TO_DSINTERVAL('+01 02:03:04.000006')", "HEXTORAW('00ff10')", "ä €",
            OracleValueConverters.UNAVAILABLE_VALUE};
        return new Events(config, table, values, full, source -> source.put("schema", "DBO").put("scn", "2122184"),
                "AMOUNT", "-0.01");
    }

    private static Column column(String name, String type, int jdbcType, int length, Integer scale, boolean optional) {
        return Column.editor().name(name).type(type).jdbcType(jdbcType).length(length).scale(scale).optional(optional)
                .create();
    }

    private static Timestamp nanos(String text) {
        return Timestamp.valueOf(text);
    }

    private static byte[] bytes(int... values) {
        byte[] made = new byte[values.length];
        for (int n = 0; n < values.length; n++) {
            made[n] = (byte) values[n];
        }
        return made;
    }

    private static BitSet bits(int... set) {
        BitSet made = new BitSet();
        for (int bit : set) {
            made.set(bit);
        }
        return made;
    }

    /** The events of a table, and the file that has them in JSON and in Avro. */
    private static final class Events {
        private final File file = new File();

        Events(RelationalDatabaseConnectorConfig config, Table table, ValueConverterProvider values, Object[] full,
               java.util.function.Consumer<Struct> position, String changed, Object value) throws Exception {
            Schema sourceSchema = config.getSourceInfoStructMaker().schema();
            TableSchema schema = new TableSchemaBuilder(values, null, SchemaNameAdjuster.create(),
                    new CustomConverterRegistry(null), sourceSchema, config.getFieldNamer(), false,
                    EventConvertingFailureHandlingMode.FAIL)
                    .create(config.getTopicNamingStrategy(io.debezium.config.CommonConnectorConfig.TOPIC_NAMING_STRATEGY),
                            table, null, null, null);
            Struct source = new Struct(sourceSchema).put("version", "3.5.0.Final").put("connector", config.getConnectorName())
                    .put("name", "dbz").put("ts_ms", NOW.toEpochMilli()).put("db", "shop").put("table", table.id().table());
            position.accept(source);
            Object[] empty = new Object[full.length];
            empty[0] = full[0] instanceof String ? "1" : (Object) 1L;
            Object[] updated = full.clone();
            updated[table.columnWithName(changed).position() - 1] = value;
            Object[] moved = updated.clone();
            moved[0] = full[0] instanceof String ? "20" : (Object) 20L;
            emit(config, schema, source, Operation.READ, null, empty);
            emit(config, schema, source, Operation.CREATE, null, full);
            emit(config, schema, source, Operation.UPDATE, full, updated);
            emit(config, schema, source, Operation.UPDATE, updated, moved); // a changed key: a delete and a create
            emit(config, schema, source, Operation.DELETE, moved, null);
            file.add(null, null, schema.getEnvelopeSchema().schema(), schema.getEnvelopeSchema().truncate(source, NOW));
        }

        private void emit(RelationalDatabaseConnectorConfig config, TableSchema schema, Struct source, Operation operation,
                          Object[] before, Object[] after) throws Exception {
            OffsetContext offset = (OffsetContext) Proxy.newProxyInstance(Connectors.class.getClassLoader(),
                    new Class<?>[]{OffsetContext.class},
                    (proxy, method, __) -> method.getName().equals("getSourceInfo") ? source : null);
            new RelationalChangeRecordEmitter<Partition>(Map::of, offset, Clock.SYSTEM, config) {
                @Override
                public Operation getOperation() {
                    return operation;
                }

                @Override
                protected Object[] getOldColumnValues() {
                    return before;
                }

                @Override
                protected Object[] getNewColumnValues() {
                    return after;
                }
            }.emitChangeRecords(schema, (partition, table, op, key, value, context, headers) -> {
                value.put("ts_ms", NOW.toEpochMilli()).put("ts_us", null).put("ts_ns", null);
                file.add(schema.keySchema(), key, value.schema(), value);
                if (op == Operation.DELETE) { // the dispatcher's tombstone
                    file.add(schema.keySchema(), key, null, null);
                }
            });
        }

        void write(Path path) throws IOException {
            file.write(path);
        }
    }

    private static void mongodb(Path folder) throws Exception {
        Configuration configuration = settings(Map.of(), "mongodb.connection.string", "mongodb://localhost:27017/");
        MongoDbConnectorConfig config = new MongoDbConnectorConfig(configuration);
        Schema sourceSchema = config.getSourceInfoStructMaker().schema();
        MongoDbSchema schemas = new MongoDbSchema(config, new MongoDbTaskContext(configuration),
                config.getTopicNamingStrategy(io.debezium.config.CommonConnectorConfig.TOPIC_NAMING_STRATEGY), sourceSchema,
                SchemaNameAdjuster.create());
        MongoDbCollectionSchema schema = (MongoDbCollectionSchema) schemas.schemaFor(new CollectionId("shop", "customers"));
        BsonDocument document = BsonDocument.parse("{\"_id\": {\"$numberLong\": \"1004\"}, \"n\": 5, \"d\": 0.1, "
                + "\"big\": {\"$numberLong\": \"9223372036854775807\"}, \"amount\": {\"$numberDecimal\": \"12345.60\"}, "
                + "\"at\": {\"$date\": \"2024-02-29T23:59:59.123Z\"}, \"oid\": {\"$oid\": \"596e275826f08b2730779e1f\"}, "
                + "\"bin\": {\"$binary\": {\"base64\": \"AP8Q\", \"subType\": \"00\"}}, \"flag\": true, \"none\": null, "
                + "\"txt\": \"ä €\", \"tags\": [\"a\", \"b\"], \"address\": {\"city\": \"Bonn\"}}");
        Struct source = new Struct(sourceSchema).put("version", "3.5.0.Final").put("connector", "mongodb").put("name", "dbz")
                .put("ts_ms", NOW.toEpochMilli()).put("db", "shop").put("collection", "customers").put("ord", 1);
        Struct key = schema.keyFromDocument(document);
        Struct read = schema.valueFromDocumentSnapshot(document, Operation.READ).put("op", "r").put("source", source)
                .put("ts_ms", NOW.toEpochMilli());
        Struct delete = new Struct(read.schema()).put("op", "d").put("source", source).put("ts_ms", NOW.toEpochMilli());
        File envelopes = new File();
        File rows = new File();
        try (ExtractNewDocumentState<SourceRecord> unwrap = new ExtractNewDocumentState<>();
                ReplaceField.Value<SourceRecord> rename = new ReplaceField.Value<>()) {
            unwrap.configure(Map.of("delete.tombstone.handling.mode", "rewrite"));
            rename.configure(Map.of("renames", "_id:id")); // as the key's field is named
            for (Struct value : List.of(read, delete)) {
                envelopes.add(key.schema(), key, value.schema(), value);
                SourceRecord row = rename.apply(unwrap.apply(new SourceRecord(Map.of(), Map.of(), "dbz.shop.customers", 0,
                        key.schema(), key, value.schema(), value)));
                rows.add(row.keySchema(), row.key(), row.valueSchema(), row.value());
            }
        }
        envelopes.write(folder.resolve("mongodb.jsonl"));
        rows.write(folder.resolve("mongodb_flattened.jsonl"));
    }

    /** Records by JsonConverter and AvroData. The first line has the schemas; a record names its schema by number. */
    private static final class File {
        private final JsonConverter framed = new JsonConverter();
        private final JsonConverter plain = new JsonConverter();
        private final AvroData avro = new AvroData(100);
        private final List<Schema> schemas = new ArrayList<>();
        private final ArrayNode json = JSON.createArrayNode();
        private final ArrayNode inAvro = JSON.createArrayNode();
        private final List<String> lines = new ArrayList<>();

        File() {
            framed.configure(Map.of("schemas.enable", "true"), false);
            plain.configure(Map.of("schemas.enable", "false"), false);
        }

        void add(Schema keySchema, Object key, Schema valueSchema, Object value) {
            try {
                ObjectNode line = JSON.createObjectNode();
                line.set("key", side(keySchema, key));
                line.set("value", side(valueSchema, value));
                lines.add(JSON.writeValueAsString(line));
            }
            catch (IOException error) {
                throw new IllegalStateException(error);
            }
        }

        private JsonNode side(Schema schema, Object data) throws IOException {
            if (data == null) {
                return null;
            }
            int number = schemas.indexOf(schema);
            org.apache.avro.Schema avroSchema = avro.fromConnectSchema(schema);
            if (number < 0) {
                number = schemas.size();
                schemas.add(schema);
                json.add(JSON.readTree(framed.fromConnectData("t", schema, data)).get("schema"));
                inAvro.add(JSON.readTree(avroSchema.toString()));
            }
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            var encoder = EncoderFactory.get().binaryEncoder(bytes, null);
            new GenericDatumWriter<>(avroSchema).write(avro.fromConnectData(schema, data), encoder);
            encoder.flush();
            return JSON.createObjectNode().put("schema", number)
                    .put("json", new String(plain.fromConnectData("t", schema, data), StandardCharsets.UTF_8))
                    .put("avro", Base64.getEncoder().encodeToString(bytes.toByteArray()));
        }

        void write(Path path) throws IOException {
            ObjectNode head = JSON.createObjectNode();
            head.set("json", json);
            head.set("avro", inAvro);
            lines.add(0, JSON.writeValueAsString(head));
            Files.writeString(path, String.join("\n", lines) + "\n");
        }
    }
}
