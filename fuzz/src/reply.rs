//! Replies as the client reads them from a daemon.
//!
//! Holds: a reply is read alike whatever follows it, and not before its last byte is there.

use rationd::wire::value::Value;

/// What replies are made of.
pub const WORDS: &[&[u8]] = &[
    b"+OK\r\n",
    b"-ERR x\r\n",
    b":1\r\n",
    b"$1\r\nx\r\n",
    b"$-1\r\n",
    b"*1\r\n",
    b"*0\r\n",
    b"*-1\r\n",
    b"_\r\n",
    b"#t\r\n",
    b",1.5\r\n",
    b",nan\r\n",
    b",inf\r\n",
    b"(123\r\n",
    b"!5\r\nERR x\r\n",
    b"=7\r\ntxt:abc\r\n",
    b"%1\r\n",
    b"~1\r\n",
    b">1\r\n",
    b"*1\r\n*1\r\n*1\r\n",
    b"*1000000\r\n",
    b"$536870912\r\n",
    b"\r\n",
    b"-1",
    b"9223372036854775807",
];

/// See the module.
pub fn run(input: &[u8]) {
    let shown = |read: Result<Option<(Value, usize)>, _>| format!("{read:?}");
    let Ok(Some((value, len))) = Value::parse(input) else {
        // What is broken stays so, whatever follows.
        if let Err(problem) = Value::parse(input) {
            assert!(problem.at <= input.len() && !problem.to_string().is_empty());
            assert!(Value::parse(&[input, b"\r\n:1\r\n"].concat()).is_err());
        }
        return;
    };
    assert!(0 < len && len <= input.len());
    let alone = shown(Value::parse(&input[..len]));
    assert_eq!(alone, shown(Ok::<_, rationd::wire::value::ReplyError>(Some((value, len)))));
    for end in (0..len).rev().take(300) {
        assert_eq!(shown(Value::parse(&input[..end])), "Ok(None)", "{end} bytes of {len}");
    }
}
