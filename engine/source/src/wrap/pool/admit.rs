//! Admission to the pool: one script that keeps the byte budget, run by the server for all samples of a request.
//!
//! The budget is of one dataset. Samples enter while there is room and leave when their time is over, which is when
//! their bytes are credited again. For a run that draws by importance this is SHADE's Algorithm 1 (Khan et al.,
//! FAST'23): in a full pool a sample is compared with the least important ones and enters in their place if it is more
//! important than each. They are samples that the same run has put there: another run's stay. An equal one does not
//! enter, as it would cost a write and gain nothing. Only a damaged value under a sample's own key is replaced.

use std::time::Duration;

use redis::Cmd;

/// `sizes` has the bytes of every sample and the run that put it, by name, and the sum of all bytes under the empty
/// name; `due` has when each expires; `worths` the importance of the run's own. A sample takes 320 bytes beside its
/// value: its names and numbers here. At most 64 give way to one, and all of them or none.
const SCRIPT: &str = "
local sizes, due, worths, prefix = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local ttl, budget, run = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function held(name)
  local bytes, owner = string.match(redis.call('HGET', sizes, name) or '', '^(%d+):(.*)$')
  return tonumber(bytes) or 0, owner
end
local function credit(name, bytes)
  redis.call('HINCRBY', sizes, '', -bytes)
  redis.call('HDEL', sizes, name)
  redis.call('ZREM', due, name)
  redis.call('ZREM', worths, name)
end
local function less(worth, need, own)
  local victims, freed = {}, 0
  local least = redis.call('ZRANGE', worths, 0, 63, 'WITHSCORES')
  for k = 1, #least, 2 do
    if freed >= need or tonumber(least[k + 1]) >= worth then break end
    local bytes, owner = held(least[k])
    if owner ~= run then
      redis.call('ZREM', worths, least[k])
    elseif least[k] ~= own then
      victims[#victims + 1] = least[k]
      freed = freed + bytes
    end
  end
  return freed >= need, victims
end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, 1000)) do
  credit(name, (held(name)))
end
local answers = {}
for k = 4, #ARGV, 4 do
  local name, replace, worth, value = ARGV[k], ARGV[k + 1] == '1', tonumber(ARGV[k + 2]), ARGV[k + 3]
  local bytes, had = #value + 320, held(name)
  local need = (tonumber(redis.call('HGET', sizes, '')) or 0) - had + bytes - budget
  local room, victims = need <= 0, {}
  if not room and worth and (replace or redis.call('EXISTS', prefix .. name) == 0) then
    room, victims = less(worth, need, name)
  end
  local answer = 0
  if room then
    for _, victim in ipairs(victims) do
      redis.call('UNLINK', prefix .. victim)
      credit(victim, (held(victim)))
    end
    local set
    if replace then set = redis.call('SET', prefix .. name, value, 'PX', ttl)
    else set = redis.call('SET', prefix .. name, value, 'PX', ttl, 'NX') end
    if set then
      redis.call('HSET', sizes, name, bytes .. ':' .. (worth and run or ''))
      redis.call('HINCRBY', sizes, '', bytes - had)
      redis.call('ZADD', due, now + ttl, name)
      if worth then redis.call('ZADD', worths, worth, name) end
      answer = 1 + #victims
    end
  end
  answers[#answers + 1] = answer
end
if #ARGV > 3 then
  for _, key in ipairs({sizes, due, worths}) do redis.call('PEXPIRE', key, ttl + 60000) end
end
return answers
";

/// The script's command for `run`, for the accounting `names` of a shard; [`item`] adds samples to it.
pub(crate) fn command(names: &[String; 4], ttl: Duration, budget: u64, run: &str) -> Cmd {
    let mut command = Cmd::new();
    command.arg("EVAL").arg(SCRIPT).arg(names.len()).arg(names).arg(ttl.as_millis() as u64).arg(budget).arg(run);
    command
}

/// Adds a sample to the script's command. `worth`: its importance, if its run draws by importance.
pub(crate) fn item(command: &mut Cmd, name: &str, replace: bool, worth: Option<f32>, value: &[u8]) {
    command.arg(name).arg(u8::from(replace)).arg(worth.map_or_else(String::new, |worth| worth.to_string())).arg(value);
}

/// The command that changes the importance of the run's samples in the pool, for the accounting `names` of a shard;
/// (importance, name) pairs are added to it.
pub(crate) fn again(names: &[String; 4]) -> Cmd {
    let mut command = Cmd::new();
    command.arg("ZADD").arg(&names[2]).arg("XX");
    command
}
