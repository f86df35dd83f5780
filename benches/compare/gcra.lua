-- A plain GCRA check, as many applications run it: every check is a script in Redis.
-- KEYS: 1 the key. ARGV: 1 burst above the first, 2 count, 3 period in seconds.
-- Reply: {limited 0|1, limit, remaining, retry_after_s or -1, reset_after_s}.
local burst, count, period = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local interval = period * 1000000 / count
local tolerance = interval * (burst + 1)
local tat = tonumber(redis.call('GET', KEYS[1]) or now)
if tat < now then tat = now end
local new = tat + interval
local ahead = new - tolerance - now
if ahead > 0 then
  return {1, burst + 1, math.floor((tolerance - (tat - now)) / interval), math.ceil(ahead / 1000000),
    math.ceil((tat - now) / 1000000)}
end
redis.call('SET', KEYS[1], string.format('%.0f', new), 'PX', math.ceil((new - now) / 1000))
return {0, burst + 1, math.floor((tolerance - (new - now)) / interval), -1, math.ceil((new - now) / 1000000)}
