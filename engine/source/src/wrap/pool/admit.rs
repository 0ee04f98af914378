//! Admission to the pool: one script that keeps the byte budget, run by the server for all samples of a request.
//!
//! The budget is of one dataset. Samples enter while there is room and leave when their time is over, which is when
//! their bytes are credited again. None is deleted to make room for another: in uniform epochs every choice hits alike,
//! and a sample may be another run's. Only a damaged value under a sample's own key is replaced.

use std::time::Duration;

use redis::Cmd;

/// `sizes` has the bytes of every sample by name, and their sum under the empty name; `due` has when each expires. A
/// sample takes 320 bytes beside its value: its names and numbers here.
const SCRIPT: &str = "
local sizes, due, prefix = KEYS[1], KEYS[2], KEYS[3]
local ttl, budget = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, name in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, 1000)) do
  redis.call('HINCRBY', sizes, '', -(redis.call('HGET', sizes, name) or 0))
  redis.call('HDEL', sizes, name)
  redis.call('ZREM', due, name)
end
local answers = {}
for k = 3, #ARGV, 3 do
  local name, replace, value = ARGV[k], ARGV[k + 1], ARGV[k + 2]
  local answer, bytes = 0, #value + 320
  local held = tonumber(redis.call('HGET', sizes, name)) or 0
  local total = tonumber(redis.call('HGET', sizes, '')) or 0
  if total - held + bytes <= budget then
    local set
    if replace == '1' then set = redis.call('SET', prefix .. name, value, 'PX', ttl)
    else set = redis.call('SET', prefix .. name, value, 'PX', ttl, 'NX') end
    if set then
      redis.call('HSET', sizes, name, bytes)
      redis.call('HINCRBY', sizes, '', bytes - held)
      redis.call('ZADD', due, now + ttl, name)
      answer = 1
    end
  end
  answers[#answers + 1] = answer
end
if #ARGV > 2 then
  redis.call('PEXPIRE', sizes, ttl + 60000)
  redis.call('PEXPIRE', due, ttl + 60000)
end
return answers
";

/// The script's command, for the accounting `names` of a shard; [`item`] adds samples to it.
pub(crate) fn command(names: &[String; 3], ttl: Duration, budget: u64) -> Cmd {
    let mut command = Cmd::new();
    command.arg("EVAL").arg(SCRIPT).arg(names.len()).arg(names).arg(ttl.as_millis() as u64).arg(budget);
    command
}

/// Adds a sample to the script's command.
pub(crate) fn item(command: &mut Cmd, name: &str, replace: bool, value: &[u8]) {
    command.arg(name).arg(u8::from(replace)).arg(value);
}
