// Clients for the JVM as tests/clients.rs drives them: java Driver CLIENT URL PROTOCOL WAY, where CLIENT is `jedis`,
// `lettuce` or `valkey-glide`, PROTOCOL `default`, `2` or `3`, and WAY `alone`, `pipeline` or `multi`. A line of stdin is a command, its
// arguments in hexadecimal; a line of stdout an answer.

import glide.api.GlideClient;
import glide.api.logging.Logger;
import glide.api.models.Batch;
import glide.api.models.GlideString;
import glide.api.models.configuration.GlideClientConfiguration;
import glide.api.models.configuration.NodeAddress;
import glide.api.models.configuration.ProtocolVersion;
import glide.api.models.configuration.ServerCredentials;
import glide.api.models.exceptions.RequestException;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.LettuceVersion;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.output.NestedMultiOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.stream.Stream;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.exceptions.JedisDataException;

class Driver {
  // Long enough for the deepest pipeline on a busy machine: what is not answered in time is given up.
  static final int PATIENCE_MS = 300_000;

  record Asked(byte[] name, byte[][] rest) {}

  public static void main(String[] args) throws Exception {
    List<Asked> commands = commands();
    URI place = URI.create(args[1]);
    String protocol = args[2], way = args[3];
    List<Object> answers =
        switch (args[0]) {
          case "jedis" -> jedis(place, protocol, way, commands);
          case "lettuce" -> lettuce(place, protocol, way, commands);
          default -> glide(place, protocol, way, commands);
        };
    StringBuilder text = new StringBuilder("version " + version(args[0]) + "\n");
    answers.forEach(answer -> text.append(shown(answer)).append('\n'));
    new PrintStream(System.out, true, "ISO-8859-1").print(text);
    System.out.flush();
    System.exit(0);
  }

  static String version(String client) throws IOException {
    if (client.equals("lettuce")) return LettuceVersion.getVersion();
    if (client.equals("valkey-glide")) return jar(GlideClient.class, "valkey-glide-");
    var found = new java.util.Properties();
    try (var file = Jedis.class.getResourceAsStream("/redis/clients/jedis/pom.properties")) {
      if (file != null) found.load(file);
    }
    return found.getProperty("version");
  }

  /** The version in the name of the jar that a class is from. */
  static String jar(Class<?> of, String before) {
    String name = of.getProtectionDomain().getCodeSource().getLocation().getPath();
    return name.substring(name.lastIndexOf(before) + before.length()).split("-|\\.jar")[0];
  }

  static List<Asked> commands() throws IOException {
    List<Asked> all = new ArrayList<>();
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = lines.readLine()) != null; ) {
      byte[][] words = Arrays.stream(line.split(" ")).map(HexFormat.of()::parseHex).toArray(byte[][]::new);
      all.add(new Asked(words[0], Arrays.copyOfRange(words, 1, words.length)));
    }
    return all;
  }

  static String shown(Object answer) {
    if (answer instanceof List<?> list) return "[" + String.join(" ", list.stream().map(Driver::shown).toList()) + "]";
    if (answer instanceof Throwable error) return "-" + error.getMessage();
    if (answer instanceof Object[] array) return shown(Arrays.asList(array));
    if (answer instanceof GlideString text) return shown(text.getBytes());
    if (answer instanceof byte[] bytes) {
      StringBuilder text = new StringBuilder("\"");
      for (byte one : bytes) {
        int code = one & 255;
        text.append(code >= 32 && code < 127 ? String.valueOf((char) code) : String.format("\\x%02x", code));
      }
      return text.append('"').toString();
    }
    return answer instanceof String text ? '"' + text + '"' : String.valueOf(answer);
  }

  static List<Object> jedis(URI place, String protocol, String way, List<Asked> commands) {
    String[] login = place.getUserInfo().split(":");
    var config = DefaultJedisClientConfig.builder().timeoutMillis(PATIENCE_MS).user(login[0]).password(login[1]);
    if (protocol.equals("2")) config.protocol(RedisProtocol.RESP2);
    if (protocol.equals("3")) config.protocol(RedisProtocol.RESP3);
    try (Jedis jedis = new Jedis(new HostAndPort(place.getHost(), place.getPort()), config.build())) {
      List<Object> answers = new ArrayList<>();
      if (way.equals("alone")) {
        for (Asked asked : commands) {
          try {
            answers.add(jedis.sendCommand(name(asked), asked.rest()));
          } catch (JedisDataException error) {
            answers.add(error);
          }
        }
      } else if (way.equals("pipeline")) {
        var pipeline = jedis.pipelined();
        commands.forEach(asked -> pipeline.sendCommand(name(asked), asked.rest()));
        answers.addAll(pipeline.syncAndReturnAll());
      } else {
        var transaction = jedis.multi();
        commands.forEach(asked -> transaction.sendCommand(name(asked), asked.rest()));
        answers.addAll(transaction.exec());
      }
      return answers;
    }
  }

  static ProtocolCommand name(Asked asked) {
    return asked::name;
  }

  static List<Object> glide(URI place, String protocol, String way, List<Asked> commands) throws Exception {
    // It logs errors of the server to stdout.
    Logger.setLoggerConfig(Logger.Level.OFF);
    String[] login = place.getUserInfo().split(":");
    var config =
        GlideClientConfiguration.builder()
            .address(NodeAddress.builder().host(place.getHost()).port(place.getPort()).build())
            .credentials(ServerCredentials.builder().username(login[0]).password(login[1]).build())
            .requestTimeout(PATIENCE_MS);
    if (protocol.equals("2")) config.protocol(ProtocolVersion.RESP2);
    if (protocol.equals("3")) config.protocol(ProtocolVersion.RESP3);
    var client = GlideClient.createClient(config.build()).get();
    List<Object> answers = new ArrayList<>();
    if (way.equals("alone")) {
      for (Asked asked : commands) {
        try {
          answers.add(client.customCommand(words(asked)).get());
        } catch (ExecutionException error) {
          if (!(error.getCause() instanceof RequestException)) throw error;
          answers.add(error.getCause());
        }
      }
      return answers;
    }
    var batch = new Batch(way.equals("multi")).withBinaryOutput();
    commands.forEach(asked -> batch.customCommand(words(asked)));
    return Arrays.asList(client.exec(batch, false).get());
  }

  static GlideString[] words(Asked asked) {
    return Stream.concat(Stream.of(asked.name()), Arrays.stream(asked.rest()))
        .map(GlideString::of)
        .toArray(GlideString[]::new);
  }

  static List<Object> lettuce(URI place, String protocol, String way, List<Asked> commands) throws Exception {
    var uri = RedisURI.create(place);
    uri.setTimeout(Duration.ofMillis(PATIENCE_MS));
    var client = io.lettuce.core.RedisClient.create(uri);
    if (!protocol.equals("default")) {
      var version =
          protocol.equals("2")
              ? io.lettuce.core.protocol.ProtocolVersion.RESP2
              : io.lettuce.core.protocol.ProtocolVersion.RESP3;
      client.setOptions(ClientOptions.builder().protocolVersion(version).build());
    }
    var connection = client.connect(ByteArrayCodec.INSTANCE);
    var async = connection.async();
    List<Object> answers = new ArrayList<>();
    if (way.equals("alone")) {
      for (Asked asked : commands) answers.add(told(dispatch(async, asked)));
      return answers;
    }
    if (way.equals("multi")) async.multi().get();
    connection.setAutoFlushCommands(false);
    List<RedisFuture<List<Object>>> asked = new ArrayList<>();
    for (Asked one : commands) asked.add(dispatch(async, one));
    var executed = way.equals("multi") ? async.exec() : null;
    connection.flushCommands();
    if (executed != null) executed.get();
    for (var one : asked) answers.add(told(one));
    return answers;
  }

  static RedisFuture<List<Object>> dispatch(
      io.lettuce.core.api.async.RedisAsyncCommands<byte[], byte[]> async, Asked asked) {
    var arguments = new CommandArgs<>(ByteArrayCodec.INSTANCE);
    for (byte[] word : asked.rest()) arguments.add(word);
    ProtocolKeyword name =
        new ProtocolKeyword() {
          public byte[] getBytes() {
            return asked.name();
          }

          public String toString() {
            return new String(asked.name());
          }
        };
    return async.dispatch(name, new NestedMultiOutput<>(ByteArrayCodec.INSTANCE), arguments);
  }

  /** The answer; a list of one stands for an answer that is no list. */
  static Object told(RedisFuture<List<Object>> future) throws InterruptedException {
    try {
      List<Object> list = future.get();
      return list.size() == 1 ? list.get(0) : list;
    } catch (ExecutionException error) {
      if (error.getCause() instanceof RedisCommandExecutionException) return error.getCause();
      throw new IllegalStateException(error);
    }
  }
}
