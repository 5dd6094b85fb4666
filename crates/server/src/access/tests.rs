//! Tokens are found, change and end.

use std::fs;
use std::path::PathBuf;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tempfile::TempDir;
use tiffin_types::access::{Denial, NAME_PATTERNS_MAX, admit};
use tiffin_types::message::Role;

use super::*;
use crate::turnstile;

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.toml");
    (folder, path)
}

fn new(name: &str, rights: &[Right]) -> NewToken {
    let rights = rights.iter().copied().collect();
    NewToken { name: name.to_owned(), rights, namespaces: vec!["team-a*".to_owned()], expires_ms: None }
}

#[test]
fn tokens_are_found_with_their_rights_and_stored_as_hashes() {
    let (_folder, path) = folder();
    let token = AccessFile::create(&path, &new("trainer", &[Right::Read, Right::Write])).unwrap();
    let other = AccessFile::create(&path, &new("reader", &[Right::Read])).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(!text.contains(&token) && !text.contains(&token["tiffin_".len()..]), "{text}");
    let access = Access::new("secret", Some(&path)).unwrap();
    assert!(!access.is_open());
    for (token, name) in [(&*token, "trainer"), (&*other, "reader"), ("secret", SETTING_NAME)] {
        assert_eq!(access.find(token).unwrap().credential().name, name);
    }
    for wrong in ["", "Secret", "secret ", &token[1..], &other.to_uppercase()] {
        assert!(access.find(wrong).is_none(), "{wrong}");
    }
    let shown = format!("{access:?}");
    assert!(!shown.contains(&token) && !shown.contains("secret"), "{shown}");
    let reader = access.find(&other).unwrap();
    assert_eq!(reader.rights(), Rights::of(Right::Read));
    let admitted = |namespace| admit(reader.credential(), Role::Client, namespace, 0);
    assert_eq!((admitted("team-a1"), admitted("team-b")), (Ok(()), Err(Denial::Namespace)));
    assert!(Access::single("").is_open() && Access::single("").find("anything").is_some());
}

#[test]
fn token_for_some_namespaces_has_one_share() {
    let (_folder, path) = folder();
    let [a, b] = ["a", "b"].map(|name| AccessFile::create(&path, &new(name, &[Right::Read])).unwrap());
    let access = Access::new("secret", Some(&path)).unwrap();
    let group = |token: &str, namespace| turnstile::group_of(&access.find(token).unwrap(), namespace);
    assert_eq!(group(&a, "team-a1"), group(&a, "team-a2"));
    assert_ne!(group(&a, "team-a1"), group(&b, "team-a1"));
    assert_ne!(group("secret", "team-a1"), group("secret", "team-a2"), "one token may be that of many users");
    assert_eq!(group("secret", "team-a1"), group("secret", "team-a1"));
}

#[test]
fn revoked_and_changed_tokens_end_and_others_stay() {
    let (_folder, path) = folder();
    let [a, b] = ["a", "b"].map(|name| AccessFile::create(&path, &new(name, &[Right::Read])).unwrap());
    let access = Access::new("", Some(&path)).unwrap();
    let (first, second) = (access.find(&a).unwrap(), access.find(&b).unwrap());
    AccessFile::revoke(&path, "a").unwrap();
    assert!(matches!(AccessFile::revoke(&path, "a"), Err(AccessError::Token { .. })));
    access.reload(0).unwrap();
    assert!(first.is_ended() && access.find(&a).is_none());
    assert!(!second.is_ended() && Arc::ptr_eq(&second, &access.find(&b).unwrap()));
    // The rights of a token change with the file.
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"read\"", "\"read\", \"write\"")).unwrap();
    access.reload(0).unwrap();
    assert!(second.is_ended() && access.find(&b).unwrap().rights().has(Right::Write));
}

#[test]
fn damaged_file_changes_nothing() {
    let (_folder, path) = folder();
    let token = AccessFile::create(&path, &new("a", &[Right::Read])).unwrap();
    let access = Access::new("", Some(&path)).unwrap();
    fs::write(&path, "[[token]]\nname = 'x'\nhash = 'tiffin_pasted'\nrights = ['read']").unwrap();
    let error = access.reload(0).unwrap_err().to_string();
    assert!(error.contains("hint: ") && !error.contains("tiffin_pasted"), "{error}");
    fs::remove_file(&path).unwrap();
    assert!(access.reload(0).is_err());
    assert!(!access.find(&token).unwrap().is_ended());
    let missing = Access::new("", Some(&path)).unwrap_err().to_string();
    assert!(missing.contains("tiffin token create"), "{missing}");
}

#[test]
fn expired_tokens_end() {
    let (_folder, path) = folder();
    let expiring = NewToken { expires_ms: Some(5_000), ..new("a", &[Right::Read]) };
    let token = AccessFile::create(&path, &expiring).unwrap();
    let access = Access::new("", Some(&path)).unwrap();
    let holder = access.find(&token).unwrap();
    assert!(holder.is_valid(4_999) && !holder.is_valid(5_000));
    // The clock of this process is later than that.
    access.reload(5_000).unwrap();
    assert!(holder.is_ended());
}

#[test]
fn invalid_files_are_rejected_with_the_problem() {
    let hash = format!("blake3:{}", blake3::hash(b"x").to_hex());
    let table = |name: &str, rest: &str| format!("[[token]]\nname = '{name}'\nhash = '{hash}'\n{rest}\n");
    for (text, expected) in [
        (table("a b", "rights = ['read']"), "a token's name"),
        (table("a", "rights = []"), "no rights"),
        (table("a", "rights = ['root']"), "no right `root`"),
        (table("a", "rights = ['read']\nnamespaces = ['a*b']"), "`a*b` is neither"),
        (table("a", "rights = ['node']\nnamespaces = ['a']"), "all namespaces"),
        (table("a", "rights = ['read']\nexpires = 'tomorrow'"), "invalid time `tomorrow`"),
        (table("a", "rights = ['read']\nright = 'write'"), "unknown field `right`"),
        (table("a", "rights = ['read']").repeat(2), "two tokens have the name `a`"),
        ("[[token]]\nname = 'a'\nhash = 'abc'\nrights = ['read']".to_owned(), "its hash is not"),
    ] {
        let problem = AccessFile::parse(&text).unwrap_err();
        assert!(problem.contains(expected), "{problem}");
    }
    let names = |count| format!("rights = ['read']\nnamespaces = [{}]", "'a',".repeat(count));
    assert!(AccessFile::parse(&table("a", &names(NAME_PATTERNS_MAX))).is_ok());
    assert!(AccessFile::parse(&table("a", &names(NAME_PATTERNS_MAX + 1))).is_err());
    let table = |at: usize| table(&format!("t{at}"), "rights = ['read']");
    let many = |count: usize| AccessFile::parse(&(0..count).map(table).collect::<String>());
    assert_eq!(many(TOKENS_MAX).unwrap().tokens.len(), TOKENS_MAX);
    assert!(many(TOKENS_MAX + 1).unwrap_err().contains("more than"));
}

#[test]
fn damaged_texts_are_parsed_without_a_panic() {
    let hash = format!("blake3:{}", blake3::hash(b"x").to_hex());
    let text = format!(
        "[[token]]\nname = 'a'\nhash = '{hash}'\nrights = ['read', 'write']\nnamespaces = ['a', 'ü*']\n\
         expires = '2027-01-01T00:00:00Z'\n"
    );
    assert!(AccessFile::parse(&text).is_ok());
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let mut valid = 0;
    for _ in 0..5_000 {
        let mut bytes = text.clone().into_bytes();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..bytes.len());
            bytes[at] = random.random();
        }
        bytes.truncate(random.random_range(0..2 * bytes.len()));
        valid += u32::from(AccessFile::parse(&String::from_utf8_lossy(&bytes)).is_ok());
    }
    assert!(valid < 5_000, "the damage is noticed");
}

#[test]
fn two_changes_at_once_do_not_lose_a_token() {
    let (_folder, path) = folder();
    fs::write(path.with_file_name("access.toml.new"), "").unwrap();
    let error = AccessFile::create(&path, &new("a", &[Right::Read])).unwrap_err().to_string();
    assert!(error.contains("`.new`"), "{error}");
    fs::remove_file(path.with_file_name("access.toml.new")).unwrap();
    AccessFile::create(&path, &new("a", &[Right::Read])).unwrap();
    assert!(AccessFile::create(&path, &new("a", &[Right::Read])).is_err(), "the name exists");
    assert_eq!(AccessFile::read(&path).unwrap().tokens.len(), 1);
    assert!(!path.with_file_name("access.toml.new").exists());
}
