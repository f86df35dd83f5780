# One check with the right headers, in Ruby: the gem redis, any Rack application. Try it: ruby check.rb
#
# A rationd that has any configuration knows only the policies written there. This asks about one:
#
#     [policy.api]
#     limits = ["100/1s burst 200"]

require "redis"

# A check that is not answered in time passes; it is not asked again, as it may have been charged.
LIMITER = Redis.new(path: "/run/rationd/rationd.sock", timeout: 0.1, reconnect_attempts: 0)

# Whether the request is limited, and the header fields of its response.
def check(policy, key)
  limited, *fields = LIMITER.call("RATION.HEADERS", policy, key)
  [limited == 1, fields.each_slice(2).to_h]
rescue Redis::BaseError
  [false, {}]
end

# Rack middleware: `use Limit` in config.ru.
class Limit
  def initialize(app)
    @app = app
  end

  def call(env)
    limited, headers = check("api", env["REMOTE_ADDR"])
    return [429, headers, ["too many requests\n"]] if limited

    status, own, body = @app.call(env)
    [status, own.merge(headers), body]
  end
end

if $PROGRAM_NAME == __FILE__
  require "socket"
  app = Limit.new(->(_env) { [200, {}, ["hello\n"]] })
  TCPServer.open("127.0.0.1", 8080) do |server|
    loop do
      client = server.accept
      line = client.gets
      line = client.gets until line.nil? || line == "\r\n"
      next client.close unless line # Nothing was asked.

      status, headers, body = app.call("REMOTE_ADDR" => client.peeraddr(false)[3])
      fields = headers.map { |name, value| "#{name}: #{value}\r\n" }.join
      client.write("HTTP/1.1 #{status} \r\n#{fields}connection: close\r\n\r\n#{body.join}")
      client.close
    rescue SystemCallError
      next # This client has left.
    end
  end
end
