//! Changes of the config over HTTP: an edit of one file, and rollbacks to a config of the history. Called by the
//! control loop, between reloads.

use std::path::PathBuf;
use std::time::Instant;

use crate::config::{self, LoadedFile, OverlayKind};
use crate::control::reload::Reloader;
use crate::control::reload::disk::{self, CheckedEdit, EditCheck, FileChange};
use crate::control::source::ConfigSource;
use crate::control::watch;
use crate::reload::change::{ChangeFault, ChangeOutcome, ConfigChange, ConfigRollback, FileEdit};
use crate::reload::files::{find_file, name_file};
use crate::reload::history::{ConfigPin, entity_tag, hash_text};
use crate::reload::job::{ReloadFailure, ReloadOrder, ReloadOutcome, Trigger};
use crate::reload::open_files::Writer;

impl Reloader {
    /// Makes a change and activates it, unless it is a dry run. A change that cannot be activated changes
    /// nothing.
    pub async fn change_config(
        &mut self,
        change: ConfigChange,
        token: Option<String>,
    ) -> Result<ChangeOutcome, ChangeFault> {
        let ConfigSource::File(main) = self.source.clone() else { return Err(ChangeFault::NotInFiles) };
        match change {
            ConfigChange::Edit(edit) => self.edit_file(main, edit, token).await,
            ConfigChange::Rollback(rollback) => self.roll_back(main, rollback, token).await,
        }
    }

    async fn edit_file(
        &mut self,
        main: PathBuf,
        edit: FileEdit,
        token: Option<String>,
    ) -> Result<ChangeOutcome, ChangeFault> {
        let (start, current) = (Instant::now(), self.current.load_full());
        if !current.config.admin.edit {
            return Err(ChangeFault::Disabled);
        }
        let FileEdit { name, text, expected, dry_run } = edit;
        let paths = self.shared.history.current_paths();
        let Some(path) = find_file(&paths, &name).cloned() else {
            let names = paths.iter().map(|path| name_file(&main, path)).collect();
            return Err(ChangeFault::UnknownFile { name, known: names });
        };
        let generation = current.generation;
        let mut hash = hash_text(text.as_bytes());
        let old_text = self.shared.history.find_text(&expected, &path);
        let check = EditCheck { main: main.clone(), path, text, expected, generation, known: old_text };
        let edit = self.loader.run_task(move || check.run()).await.map_err(ChangeFault::Hung)??;
        let (reload, written) = match edit {
            None => {
                (ReloadOutcome::Unchanged { generation, warnings: super::warnings_json(&current.config) }, Vec::new())
            }
            Some(CheckedEdit { change, config }) if dry_run => {
                hash = hash_text(&change.old.unwrap_or_default());
                (self.dry_run(config), Vec::new())
            }
            Some(CheckedEdit { change, .. }) => {
                (self.write_and_load(main, vec![change], Trigger::Edit, token).await?, vec![name])
            }
        };
        let tag = entity_tag(self.current.load().generation, &hash);
        Ok(ChangeOutcome { reload, tag, written, applied_ms: elapsed_ms(start) })
    }

    async fn roll_back(
        &mut self,
        main: PathBuf,
        rollback: ConfigRollback,
        token: Option<String>,
    ) -> Result<ChangeOutcome, ChangeFault> {
        let (start, current) = (Instant::now(), self.current.load_full());
        let ConfigRollback { generation, expected, dry_run } = rollback;
        let tag = entity_tag(current.generation, &current.config.hash);
        if !expected.contains(&tag) {
            return Err(ChangeFault::Stale { tag, text_diff: None });
        }
        if generation == current.generation {
            let reload = ReloadOutcome::Unchanged { generation, warnings: super::warnings_json(&current.config) };
            return Ok(ChangeOutcome { reload, tag, written: Vec::new(), applied_ms: elapsed_ms(start) });
        }
        let files = self.shared.history.find_files(generation)?;
        if dry_run {
            let reload = self.preview_rollback(main, generation, files).await?;
            return Ok(ChangeOutcome { reload, tag, written: Vec::new(), applied_ms: elapsed_ms(start) });
        }
        let restore = match current.config.admin.edit {
            true => self.restore_files(main.clone(), generation, files.clone(), token.clone()).await.map(Some),
            false => Ok(None),
        };
        let (reload, written) = match restore {
            Ok(Some(outcome)) => outcome,
            // A rollback must work where the files cannot be written: a ConfigMap, or a full disk.
            Ok(None) | Err(ChangeFault::Unwritable { .. }) => {
                (self.pin_config(main, generation, files, token).await?, Vec::new())
            }
            Err(fault) => return Err(fault),
        };
        let current = self.current.load();
        let tag = entity_tag(current.generation, &current.config.hash);
        Ok(ChangeOutcome { reload, tag, written, applied_ms: elapsed_ms(start) })
    }

    /// Reports what a rollback would change, or why it is not possible.
    async fn preview_rollback(
        &mut self,
        main: PathBuf,
        generation: u64,
        files: Vec<LoadedFile>,
    ) -> Result<ReloadOutcome, ChangeFault> {
        let is_editable = self.current.load().config.admin.edit;
        let preview = move || {
            if is_editable {
                disk::plan_restore(&main, &files, generation)?;
            }
            let texts = disk::overlay_of(&files, OverlayKind::Recorded);
            config::load_with_texts(&main, texts).map_err(ChangeFault::Invalid)
        };
        let config = self.loader.run_task(preview).await.map_err(ChangeFault::Hung)??;
        Ok(self.dry_run(config))
    }

    /// Writes the files of an earlier config and loads them.
    async fn restore_files(
        &mut self,
        main: PathBuf,
        generation: u64,
        files: Vec<LoadedFile>,
        token: Option<String>,
    ) -> Result<(ReloadOutcome, Vec<String>), ChangeFault> {
        let path = main.clone();
        let plan = self.loader.run_task(move || disk::plan_restore(&path, &files, generation)).await;
        let changes = plan.map_err(ChangeFault::Hung)??;
        let names = changes.iter().map(|change| change.name.clone()).collect();
        Ok((self.write_and_load(main, changes, Trigger::Rollback, token).await?, names))
    }

    /// Activates an earlier config instead of the files.
    async fn pin_config(
        &mut self,
        main: PathBuf,
        generation: u64,
        files: Vec<LoadedFile>,
        token: Option<String>,
    ) -> Result<ReloadOutcome, ChangeFault> {
        let recorded: Vec<PathBuf> = files.iter().map(|file| file.path.clone()).collect();
        let load = move || config::load_with_texts(&main, disk::overlay_of(&files, OverlayKind::Recorded));
        let mut config = self.loader.run_task(load).await.map_err(ChangeFault::Hung)?.map_err(ChangeFault::Invalid)?;
        // Sets, passwords and the like are read as they are now.
        let read = config.files.iter().filter(|file| !recorded.contains(file)).cloned().collect();
        if let Some(Writer { path, process }) = self.find_writer(read).await {
            let failure = ReloadFailure::BeingWritten { path, writer: process };
            return Err(ChangeFault::NotApplied { failure, restored: Ok(()) });
        }
        let (hash, old) = (config.hash.clone(), self.current.load_full());
        // A change of the files ends the pin, so they are watched even if the earlier config does not have them.
        config
            .files
            .extend(old.config.files.iter().filter(|file| !config.files.contains(file)).cloned().collect::<Vec<_>>());
        let files_hash = self.shared.history.pin().map_or_else(|| old.config.hash.clone(), |pin| pin.files_hash);
        self.announce_reload();
        let outcome = self.apply_config(config, Trigger::Rollback, token).await;
        self.record_outcome(&outcome, Trigger::Rollback);
        self.announce_end(&outcome);
        if let ReloadOutcome::Failed { failure, .. } = outcome {
            return Err(ChangeFault::NotApplied { failure, restored: Ok(()) });
        }
        if hash == files_hash {
            self.end_pin();
        } else {
            self.shared.history.set_pin(Some(ConfigPin { generation, files_hash }));
            self.metrics.config_pinned.set(1);
            tracing::warn!(
                "the config of generation {generation} is active in place of the files, until a file is saved with a \
                 change"
            );
        }
        Ok(outcome)
    }

    /// Writes files and loads the config. If that fails, the files get their texts before back.
    async fn write_and_load(
        &mut self,
        main: PathBuf,
        changes: Vec<FileChange>,
        trigger: Trigger,
        token: Option<String>,
    ) -> Result<ReloadOutcome, ChangeFault> {
        let current = self.current.load_full();
        let (files, generation, path) = (current.config.files.clone(), current.generation, main.clone());
        let write = move || {
            disk::write_changes(&path, &changes, generation)?;
            Ok::<_, ChangeFault>((changes, watch::digest_contents(&files), files))
        };
        let (changes, digest, files) = self.loader.run_task(write).await.map_err(ChangeFault::Hung)??;
        // The watcher notices the new texts, but they are loaded here.
        self.shared.set_written(Some(digest));
        let order = ReloadOrder { trigger, dry_run: false, verify: false, files, token };
        let (outcome, _) = self.reload(&order).await;
        let ReloadOutcome::Failed { failure, .. } = outcome else { return Ok(outcome) };
        self.shared.set_written(None);
        let restore = self.loader.run_task(move || disk::restore_changes(&main, &changes)).await;
        let result = restore.unwrap_or_else(|hung| Err(std::io::Error::other(hung)));
        if let Err(error) = &result {
            tracing::error!("the config files keep a config that cannot be activated: {error}");
        }
        Err(ChangeFault::NotApplied { failure, restored: result })
    }
}

fn elapsed_ms(start: Instant) -> u64 {
    start.elapsed().as_millis().try_into().unwrap_or(u64::MAX)
}
