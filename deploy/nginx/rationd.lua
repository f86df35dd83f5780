-- One check in rationd, for nginx's Lua: header fields are set, and who is limited gets a 429.
local rationd = {}

local TIMEOUT_MS = 100

-- The fields and whether it is limited; nil and why, when rationd is away, late or refuses.
local function ask(path, words)
  local socket = ngx.socket.tcp()
  socket:settimeout(TIMEOUT_MS)
  local ok, why = socket:connect("unix:" .. path)
  if not ok then return nil, why end
  local request = { "*" .. #words .. "\r\n" }
  for _, word in ipairs(words) do request[#request + 1] = "$" .. #word .. "\r\n" .. word .. "\r\n" end
  ok, why = socket:send(request)
  local head = ok and socket:receive("*l")
  local count = head and tonumber(head:match("^%*(%d+)$"))
  if not count then
    socket:close()
    return nil, head or why or "no answer"
  end
  local limited = socket:receive("*l")
  local fields, complete = {}, limited
  for _ = 2, count, 2 do
    -- Of each: its length, then itself; no line break is ever within.
    local _, name = socket:receive("*l"), socket:receive("*l")
    local _, value = socket:receive("*l"), socket:receive("*l")
    complete = complete and value
    if complete then fields[name] = value end
  end
  if not complete then
    socket:close()
    return nil, "the answer broke off"
  end
  socket:setkeepalive(60000, 32)
  return fields, limited == ":1"
end

function rationd.limit(path, policy, key)
  local fields, limited = ask(path, { "RATION.HEADERS", policy, key })
  if not fields then
    ngx.log(ngx.ERR, "rationd did not decide, the request passes: ", limited)
    return
  end
  for name, value in pairs(fields) do ngx.header[name] = value end
  if limited then return ngx.exit(429) end
end

return rationd
