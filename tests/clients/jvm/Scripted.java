// Redisson as tests/clients.rs drives it: java Scripted HOST:PORT. It has no way to send a command that it does not know,
// so it asks by a script, as its users would. It prints its version and an answer a line.

import java.util.List;
import org.redisson.Redisson;
import org.redisson.api.RScript;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

class Scripted {
  static final String SCRIPT = "return redis.call('cl.throttle', KEYS[1], ARGV[1], ARGV[2], ARGV[3])";

  public static void main(String[] args) {
    var config = new Config();
    config.useSingleServer().setAddress("redis://" + args[0]);
    var client = Redisson.create(config);
    System.out.println(Redisson.class.getPackage().getImplementationVersion());
    for (int i = 0; i < 3; i++) {
      List<Object> keys = List.of("user:42");
      var script = client.getScript(StringCodec.INSTANCE);
      List<Object> answer =
          script.eval(RScript.Mode.READ_WRITE, SCRIPT, RScript.ReturnType.MULTI, keys, "2", "30", "60");
      System.out.println(answer);
    }
    client.shutdown();
  }
}
