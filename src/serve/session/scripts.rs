//! `EVAL`, `EVALSHA` and `SCRIPT`: a script that is recognized runs as the command that it calls. Part of
//! `session.rs`.

use super::{Batch, Session};
use crate::serve::script_cache::ScriptCache;
use crate::wire::command::Script;
use crate::wire::command_error::CommandError;
use crate::wire::resp::Args;
use crate::wire::throttle::scripted;

impl Session {
    /// Runs `EVAL`, `EVALSHA` or `SCRIPT`, whose arguments are `args`.
    pub(super) fn script(&mut self, batch: &mut Batch<'_>, script: Script<'_>, args: Args<'_>) {
        match script {
            Script::Eval(text) => {
                batch.state.scripts().learn(text);
                self.scripted(batch, args);
            }
            Script::EvalSha(hash) if batch.state.scripts().has(hash) => self.scripted(batch, args),
            Script::EvalSha(_) => self.refuse(batch, args, &CommandError::UnknownScript),
            Script::Load(text) => {
                let hash = batch.state.scripts().learn(text);
                self.writer(batch).bulk(hash.as_bytes());
            }
            Script::Exists => {
                let found: Vec<bool> = args.iter().skip(2).map(|hash| batch.state.scripts().has(hash)).collect();
                let mut writer = self.writer(batch);
                writer.array(found.len());
                found.into_iter().for_each(|is_known| writer.integer(i64::from(is_known)));
            }
            Script::Flush => {
                *batch.state.scripts() = ScriptCache::default();
                self.writer(batch).simple("OK");
            }
        }
    }

    fn scripted(&mut self, batch: &mut Batch<'_>, args: Args<'_>) {
        match scripted(args) {
            Ok(command) => self.execute(batch, command, args),
            Err(problem) => self.refuse(batch, args, &problem),
        }
    }
}
