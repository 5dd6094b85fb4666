//! Each rule holds, and breaking it is noticed.

use std::cell::Cell;

use super::*;
use crate::message::{
    Ack, AdmitCluster, Await, Commit, Delete, DeleteMatching, DropPins, EndStream, Exists, Explain,
    ForgetNode, Hello, Lease, List, NamedStream, NamespaceStat, NodeStat, OpenStream, Pattern, Pin, Ping,
    PolicyChange, Prefetch, Publish, Pull, Release, Reserve, Resolve, Store, StreamStat,
};
use crate::{ClusterId, Key, RequestId};

thread_local! {
    static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
}

pub(super) fn is_broken(rule: Rule) -> bool {
    BROKEN.get() == Some(rule)
}

const RULES: [Rule; 9] = [
    Rule::Expiry,
    Rule::Namespace,
    Rule::ExactNames,
    Rule::NodeRight,
    Rule::Write,
    Rule::Admin,
    Rule::WholeMemory,
    Rule::WholeCluster,
    Rule::Redact,
];

fn only(names: &[&str]) -> Namespaces {
    Namespaces::Some(names.iter().map(|it| NamePattern::new(it).unwrap()).collect())
}

fn with(rights: &[Right], names: &[&str]) -> Credential {
    Credential::new("trainer", rights.iter().copied().collect(), only(names), Some(1000))
}

/// The first rule that does not hold.
fn check() -> Result<(), String> {
    check_admission()?;
    check_requests()?;
    check_redaction()
}

fn check_admission() -> Result<(), String> {
    let reader = with(&[Right::Read], &["team-a", "shared*"]);
    let node = Credential::new("node", Rights::of(Right::Node), only(&["x"]), None);
    let admin = with(&[Right::Admin], &["team-a"]);
    let wrong = Err(Denial::Namespace);
    let not_a_node = Err(Denial::Right(Rights::of(Right::Node)));
    for (credential, role, namespace, now, expected) in [
        (&reader, Role::Client, "team-a", 0, Ok(())),
        (&reader, Role::Lane, "shared-data", 999, Ok(())),
        (&reader, Role::Client, "shared", 999, Ok(())),
        (&reader, Role::Client, "team-a", 1000, Err(Denial::Expired)),
        (&reader, Role::Lane, "team-ab", 0, wrong.clone()),
        (&reader, Role::Client, "default", 0, wrong),
        (&reader, Role::Node, "", 0, not_a_node.clone()),
        (&reader, Role::Ledger, "", 0, not_a_node.clone()),
        (&admin, Role::Node, "", 0, not_a_node),
        (&node, Role::Node, "", u64::MAX, Ok(())),
        (&node, Role::Client, "default", 0, Ok(())),
    ] {
        let found = admit(credential, role, namespace, now);
        if found != expected {
            return Err(format!("{credential:?} as {role:?} in `{namespace}` at {now}: {found:?}"));
        }
    }
    let all = [Right::Read, Right::Write];
    for (credential, expected) in [
        (with(&all, &["*"]), true),
        (with(&all, &["team-a*"]), false),
        (with(&[Right::Read], &["*"]), false),
        (with(&[Right::Write, Right::Admin], &["*"]), false),
        (node, true),
    ] {
        if credential.may_map() != expected {
            return Err(format!("{credential:?} maps memory"));
        }
    }
    Ok(())
}

fn requests() -> Vec<(Request, Rights)> {
    use ClientToMaster as It;
    let (read, write, admin, any) = (Rights::READ, Rights::WRITE, Rights::ADMIN, Rights::ALL);
    let from = "default".to_owned();
    let at_master = [
        (It::Resolve(Resolve::default()), read),
        (It::Exists(Exists::default()), read),
        (
            It::List(List { pattern: Pattern::All, pinned_by: None, cursor: 0, limit: 1, report_wait_ms: 0 }),
            read,
        ),
        (It::Why(Explain::default()), read),
        (It::Await(Await::default()), read),
        (It::Prefetch(Prefetch::default()), read),
        (It::Reserve(Reserve::default()), write),
        (It::Publish(Publish::default()), write),
        (It::Delete(Delete::default()), write),
        (It::DeleteMatching(DeleteMatching { pattern: Pattern::All, force: true, wait_ms: 0 }), write),
        (It::Pin(Pin::default()), write),
        (It::DropPins(DropPins::default()), write),
        (It::Lease(Lease::default()), write),
        (It::Ack(Ack::default()), write),
        (It::OpenStream(OpenStream::default()), write),
        (It::EndStream(EndStream::default()), write),
        (It::Pull(Pull::default()), write),
        (It::SetPolicy(PolicyChange::NONE), admin),
        (It::ForgetNode(ForgetNode { name: from }), admin),
        (It::AdmitCluster(AdmitCluster::default()), admin),
        (It::Stat, any),
        (It::Ping(Ping::default()), any),
        (It::Release(Release::default()), any),
        (It::KeepLeases(Vec::new()), any),
        (It::Cancel(RequestId(1)), any),
    ];
    let at_node = [
        (ClientToNode::Commit(Commit::default()), write),
        (ClientToNode::Store(Store::default()), write),
        (ClientToNode::BeginViews(Vec::new()), read),
        (ClientToNode::Abort(Vec::new()), any),
        (ClientToNode::Keep(Vec::new()), any),
        (ClientToNode::EndViews(Vec::new()), any),
        (ClientToNode::KeepViews(Vec::new()), any),
    ];
    let mut rows: Vec<(Request, Rights)> = at_master.map(|(it, needed)| (it.into(), needed)).into();
    rows.extend(at_node.map(|(it, needed)| (it.into(), needed)));
    rows.push((MemberToMaster::Heartbeat(Box::default()).into(), Rights::NODE));
    rows.push((MasterToMember::Inspect(Vec::new()).into(), Rights::NONE));
    rows
}

fn check_requests() -> Result<(), String> {
    for (request, needed) in requests() {
        for rights in Right::ALL.map(Rights::of).into_iter().chain([Rights::NONE]) {
            let credential = Credential::new("x", rights, Namespaces::All, None);
            let is_view = matches!(request, Request::ClientToNode(ClientToNode::BeginViews(_)));
            let expected = credential.rights().meets(needed) && (!is_view || credential.may_map());
            if permits(&credential, &request).is_ok() != expected {
                return Err(format!("{request:?} with the rights {rights}: {}", !expected));
            }
        }
    }
    let view = ClientToNode::BeginViews(Vec::new()).into();
    let limited = with(&[Right::Read, Right::Write], &["team-a"]);
    if permits(&limited, &view).is_ok() && !is_broken(Rule::WholeMemory) {
        return Err("a view with a limited token".to_owned());
    }
    let limited = with(&[Right::Admin], &["team-a"]);
    let (forget, admit) = (ForgetNode { name: "n".to_owned() }, AdmitCluster { cluster: ClusterId(1) });
    for request in [ClientToMaster::ForgetNode(forget), ClientToMaster::AdmitCluster(admit)] {
        if permits(&limited, &request.into()) != Err(Denial::Everywhere) {
            return Err("a limited administrator changes the members".to_owned());
        }
    }
    if permits(&limited, &ClientToMaster::SetPolicy(PolicyChange::NONE).into()).is_err() {
        return Err("a limited administrator cannot change a policy".to_owned());
    }
    let nothing = Credential::new("x", Rights::NONE, Namespaces::All, None);
    permits(&nothing, &Request::Hello(Hello::default())).map_err(|it| it.to_string())
}

fn stat() -> Stat {
    let space = |name: &str| NamespaceStat { name: name.to_owned(), ..NamespaceStat::default() };
    let stream = |name: &str| NamedStream {
        namespace: name.to_owned(),
        name: "s".to_owned(),
        stat: StreamStat::default(),
    };
    Stat {
        namespaces: vec![space("team-a"), space("team-b")],
        streams: vec![stream("team-a"), stream("team-b")],
        nodes: vec![NodeStat { holders: vec![Default::default()], ..NodeStat::default() }],
        evicted_objects: 3,
        clients: 9,
        ..Stat::default()
    }
}

fn check_redaction() -> Result<(), String> {
    let evicted = |node: &str| {
        Why::Gone(Gone {
            cause: Cause::Evicted,
            node: node.to_owned(),
            by: "trainer-7".to_owned(),
            for_key: Some(Key::new(b"secret-name").unwrap()),
            ..Gone::default()
        })
    };
    let mut own = Reply::Stat(Box::new(stat()));
    redact(&only(&["team-a"]), &mut own);
    let Reply::Stat(shown) = &own else { return Err("another reply".to_owned()) };
    let text = format!("{shown:?}");
    if text.contains("team-b") || shown.evicted_objects + shown.clients > 0 || !text.contains("team-a") {
        return Err(text);
    }
    if shown.streams.len() != 1 || !shown.nodes[0].holders.is_empty() {
        return Err(text);
    }
    let mut own = Reply::Why(vec![evicted("node-1"), evicted(""), Why::Unknown]);
    redact(&only(&["team-a"]), &mut own);
    let Reply::Why(shown) = &own else { return Err("another reply".to_owned()) };
    if format!("{:?}", shown[0]).contains("secret-name") || shown[1] != evicted("") {
        return Err(format!("{shown:?}"));
    }
    let (mut whole, expected) = (Reply::Stat(Box::new(stat())), Reply::Stat(Box::new(stat())));
    redact(&Namespaces::All, &mut whole);
    redact(&only(&["*"]), &mut whole);
    if whole == expected { Ok(()) } else { Err("a reply to an unlimited credential changed".to_owned()) }
}

#[test]
fn every_rule_holds() {
    assert_eq!(check(), Ok(()));
}

#[test]
fn every_broken_rule_is_noticed() {
    for rule in RULES {
        BROKEN.set(Some(rule));
        let found = check();
        BROKEN.set(None);
        assert!(found.is_err(), "{rule:?} is broken and no row notices");
    }
}

#[test]
fn patterns_and_rights_have_names() {
    for (text, is_valid) in
        [("a", true), ("a*", true), ("*", true), ("", false), ("a*b", false), ("**", false)]
    {
        assert_eq!(NamePattern::new(text).is_some(), is_valid, "{text}");
    }
    for right in Right::ALL {
        assert_eq!(Right::named(right.name()), Some(right));
    }
    assert_eq!(Right::named("root"), None);
    assert_eq!(Rights::ALL.to_string(), "read, write, admin, node");
    assert_eq!(Rights::NONE.to_string(), "none");
}
