//! The shipped scripts, and mutants of them, on the interpreter of `redis/`: see `redis_model::scripts`.
//!
//! Called by the world for each call that reaches a server.

use rationd::store::script::{self, Script};

use crate::earlier;
use crate::keyspace::Keyspace;

/// An interpreter with every script compiled.
#[derive(Debug)]
pub struct Scripts(redis_model::scripts::Scripts);

impl Default for Scripts {
    fn default() -> Self {
        Self::new()
    }
}

impl Scripts {
    /// The scripts as they are shipped.
    #[must_use]
    pub fn new() -> Self {
        Self::edited(&[])
    }

    /// Mutants: the scripts with each text replaced wherever it stands, one edit after the other.
    ///
    /// # Panics
    /// If a text is found in none of the scripts, or what comes out is no Lua.
    #[must_use]
    pub fn edited(edits: &[(&str, &str)]) -> Self {
        for (from, _) in edits {
            assert!(script::sources().iter().any(|(_, text)| text.contains(from)), "no script says `{from}`");
        }
        let texts =
            script::edited(|text| edits.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to)));
        // The scripts of the build before are not edited.
        let texts = texts.into_iter().chain(earlier::all().map(|script| (script.name, script.text.to_owned())));
        let read = redis_model::scripts::Scripts::read(&texts.collect::<Vec<_>>());
        Self(read.unwrap_or_else(|error| panic!("a script that does not compile: {error}")))
    }

    /// Runs a script on a key at a time of the server's clock. `arguments` gets the function that
    /// takes ARGV, one after the other, which is what [`script::arguments`] wants.
    ///
    /// # Errors
    /// Redis' error line, such as `ERR rationd: ...`. Also for an answer of anything but numbers, which none of the shipped scripts
    /// gives.
    pub fn run(
        &mut self,
        keyspace: &mut Keyspace,
        script: &Script,
        key: &str,
        now_us: u64,
        arguments: impl FnOnce(&mut dyn FnMut(&[u8])),
    ) -> Result<Vec<i64>, String> {
        self.0.run(keyspace, script.name, key, now_us, arguments)
    }

    /// Runs the script for several acquires at once: what it says of each key, as text or as an error.
    ///
    /// # Errors
    /// Redis' error line for the whole.
    pub fn run_many(
        &mut self,
        keyspace: &mut Keyspace,
        keys: &[&str],
        now_us: u64,
        arguments: impl FnOnce(&mut dyn FnMut(&[u8])),
    ) -> Result<Vec<Result<Vec<u8>, String>>, String> {
        self.0.run_many(keyspace, script::many().name, keys, now_us, arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server's clock: half a millisecond after a whole second.
    const NOW: u64 = 1_800_000_000_000_500;

    /// ARGV of a peek: the field of the node, time and id, a limit.
    fn peek_argv() -> [Vec<u8>; 3] {
        [b"n:n".to_vec(), numbers("", &[0, 0]), numbers("f", &[10, 1_000_000, 10])]
    }

    fn numbers(letter: &str, numbers: &[u64]) -> Vec<u8> {
        let numbers = numbers.iter().flat_map(|number| number.to_le_bytes().into_iter().take(script::WIDTH));
        letter.bytes().chain(numbers).collect()
    }

    fn script(name: &str) -> &'static Script {
        script::all().into_iter().find(|script| script.name == name).expect("a script")
    }

    fn run(scripts: &mut Scripts, keyspace: &mut Keyspace, name: &str, argv: &[Vec<u8>]) -> Result<Vec<i64>, String> {
        scripts.run(keyspace, script(name), "k", NOW, |push| argv.iter().for_each(|bytes| push(bytes)))
    }

    fn acquire(scripts: &mut Scripts, keyspace: &mut Keyspace) -> Vec<i64> {
        let argv =
            [b"n:n".to_vec(), numbers("", &[0, 7, 2, 4, 0, 0, 0, 0, 0]), numbers("f", &[10, 1_000_000, 10, 0, 0, 0])];
        run(scripts, keyspace, "acquire", &argv).unwrap()
    }

    /// Runs the peek script with this body instead of its own.
    fn peek(body: &str) -> Result<Vec<i64>, String> {
        let first = "local has_gcra = false";
        let mut scripts = Scripts::edited(&[(first, &format!("do {body} end {first}"))]);
        run(&mut scripts, &mut Keyspace::default(), "peek", &peek_argv())
    }

    #[test]
    fn acquire_lends_and_writes() {
        let (mut scripts, mut keyspace) = (Scripts::new(), Keyspace::default());
        let now = NOW as i64;
        let end = (now / 1_000_000 + 1) * 1_000_000;
        assert_eq!(acquire(&mut scripts, &mut keyspace), [4, 16, 7, now, 4, 0, end]);
        assert_eq!(acquire(&mut scripts, &mut keyspace), [4, 17, 7, now, 4, 0, end]);
        let entry = keyspace.get("k").unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let fields: Vec<_> = entry.fields().map(|(field, value)| (text(field), text(value))).collect();
        assert_eq!(fields.iter().map(|(field, _)| field.as_str()).collect::<Vec<_>>(), ["c", "e", "f1", "n:n"]);
        assert_eq!(fields[2].1, format!("4 0 {end}"));
        assert_eq!(entry.expires_ms(), Some(end / 1_000 + 1_001), "a period after the window");
    }

    #[test]
    fn shorter_argv_leaves_nothing_of_a_longer_one() {
        let (mut scripts, mut keyspace) = (Scripts::new(), Keyspace::default());
        acquire(&mut scripts, &mut keyspace);
        assert_eq!(run(&mut scripts, &mut keyspace, "peek", &peek_argv()).unwrap()[4], 4);
        let wrong = run(&mut scripts, &mut keyspace, "peek", &peek_argv()[..2]);
        assert!(wrong.unwrap_err().starts_with("ERR rationd: wrong arguments"));
    }

    #[test]
    fn replies_are_converted_as_in_redis() {
        assert_eq!(peek("return {1, 2.9, -2.9, nil, 5}"), Ok(vec![1, 2, -2]));
        assert_eq!(peek("return {redis.call('HMGET', hash, 'a')[1] == false and 1 or 0}"), Ok(vec![1]));
        assert_eq!(
            peek("local t = redis.call('TIME') return {#t, t[1] + 0, t[2] + 0}"),
            Ok(vec![2, 1_800_000_000, 500])
        );
        assert_eq!(peek("return redis.error_reply('BUSY now')"), Err("BUSY now".into()));
        assert_eq!(peek("return redis.error_reply('-oops')"), Err("ERR oops".into()));
        assert!(peek("return redis.status_reply('OK')").unwrap().is_empty());
    }

    #[test]
    fn numbers_are_packed_as_in_redis() {
        let packed = "struct.pack('<I7I4', 2 ^ 53 - 1, 513)";
        let bytes = format!("local t = {{}} for i = 1, 11 do t[i] = string.byte({packed}, i) end return t");
        assert_eq!(peek(&bytes), Ok(vec![255, 255, 255, 255, 255, 255, 31, 1, 2, 0, 0]));
        let numbers = format!("return {{struct.unpack('<I7I4', {packed})}}");
        assert_eq!(peek(&numbers), Ok(vec![(1 << 53) - 1, 513, 12]), "and the place behind them");
        assert_eq!(peek("local c, n = struct.unpack('<c1I1', 'xgA', 2) return {c == 'g' and n}"), Ok(vec![65]));
        for wrong in ["struct.unpack('<I7', 'short')", "struct.unpack('>I1', 'x')", "struct.pack('<I1', 256)"] {
            assert!(peek(&format!("return {{{wrong}}}")).unwrap_err().starts_with("ERR "), "{wrong}");
        }
    }

    #[test]
    fn script_that_leaves_its_world_is_an_error() {
        let own = "redis.call('HINCRBY', hash, 'a', '1')";
        let nil = "redis.call('HSET', hash, nil, '1', 'a')";
        for body in [
            own,
            nil,
            "x = 1",
            "return x",
            "pairs({})",
            "math.random()",
            "redis.call('DEL', 'other')",
            "redis.sha1hex('')",
        ] {
            let error = peek(body).unwrap_err();
            assert!(error.starts_with("ERR ") && !error.contains('\n'), "{body}: {error}");
        }
        assert!(peek("return redis.pcall('HINCRBY', hash, 'a', '1')").unwrap_err().contains("HINCRBY"));
    }

    #[test]
    fn wrong_type_is_told_to_pcall_and_fails_call() {
        let (mut scripts, mut keyspace) = (Scripts::new(), Keyspace::default());
        keyspace.set_string("k", b"x");
        let reply = run(&mut scripts, &mut keyspace, "peek", &peek_argv()).unwrap();
        assert_eq!(reply[1], 16 + 4, "told as damaged");
        let mut call = Scripts::edited(&[("redis.pcall", "redis.call")]);
        assert!(run(&mut call, &mut keyspace, "peek", &peek_argv()).unwrap_err().starts_with("WRONGTYPE "));
    }

    #[test]
    #[should_panic(expected = "no script says `granted = 8`")]
    fn edit_that_finds_nothing_panics() {
        let _ = Scripts::edited(&[("granted = 8", "")]);
    }
}
