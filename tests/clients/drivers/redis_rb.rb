# redis-rb as tests/clients.rs drives it: ruby redis_rb.rb SOCKET WAY, where WAY is `alone`, `pipeline` or `multi`.
# A line of stdin is a command, its arguments in hexadecimal; a line of stdout an answer.

require "redis"

def shown(answer)
  case answer
  when Array then "[#{answer.map { |item| shown(item) }.join(' ')}]"
  when Exception then "-#{answer.message}"
  when Integer then answer.to_s
  else %("#{answer.bytes.map { |byte| byte.between?(32, 126) ? byte.chr : format('\x%02x', byte) }.join}")
  end
end

def told
  yield
rescue Redis::CommandError => e
  e
end

socket, way = ARGV
commands = $stdin.each_line.map { |line| line.split.map { |word| [word].pack("H*") } }
# By default what is not answered within 5 s is sent again, and counted again.
redis = Redis.new(path: socket, timeout: 300, reconnect_attempts: 0)
answers =
  if way == "alone"
    commands.map { |command| told { redis.call(*command) } }
  else
    redis.public_send(way == "multi" ? :multi : :pipelined) { |all| commands.each { |command| all.call(*command) } }
  end
redis.quit == "OK" or abort "no OK to QUIT"
puts "version #{Redis::VERSION}"
puts(answers.map { |answer| shown(answer) })
