-- One check in rationd, for HAProxy: `http-request lua.rationd SOCKET POLICY` about the key in txn.ration_key.
-- It sets txn.ration_limited, and what RATION.HEADERS tells: txn.ration_policy, .ration_limit, .ration_wait.
-- When rationd is away, late or refuses, nothing is set, and the request passes.

local TIMEOUT_S = 0.1

local VARIABLES = {
  ["ratelimit-policy"] = "txn.ration_policy",
  ["ratelimit"] = "txn.ration_limit",
  ["retry-after"] = "txn.ration_wait",
}

-- The fields and whether it is limited; nil and why.
local function ask(socket, path, words)
  socket:settimeout(TIMEOUT_S)
  if not socket:connect("unix@" .. path) then return nil, "it does not listen" end
  local request = "*" .. #words .. "\r\n"
  for _, word in ipairs(words) do request = request .. "$" .. #word .. "\r\n" .. word .. "\r\n" end
  if not socket:send(request) then return nil, "it does not read" end
  local function line()
    local text = socket:receive("*l")
    return text and text:gsub("\r$", "")
  end
  local head = line()
  local count = head and tonumber(head:match("^%*(%d+)$"))
  if not count then return nil, head or "no answer" end
  local limited, fields = line(), {}
  for _ = 2, count, 2 do
    -- Of each: its length, then itself; no line break is ever within.
    local _, name = line(), line()
    local _, value = line(), line()
    if not value then return nil, "the answer broke off" end
    fields[name] = value
  end
  return fields, limited == ":1"
end

core.register_action("rationd", { "http-req" }, function(txn, path, policy)
  local socket = core.tcp()
  local fields, limited = ask(socket, path, { "RATION.HEADERS", policy, tostring(txn:get_var("txn.ration_key")) })
  socket:close()
  if not fields then
    txn:Warning("rationd did not decide, the request passes: " .. limited)
    return
  end
  for name, value in pairs(fields) do
    if VARIABLES[name] then txn:set_var(VARIABLES[name], value) end
  end
  txn:set_var("txn.ration_limited", limited)
end, 2)
