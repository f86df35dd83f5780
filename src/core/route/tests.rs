//! Routes: which one fits, and the key that it makes.

use super::*;

fn spec(patterns: &[&str], policy: &str) -> RouteSpec {
    let patterns = patterns.iter().map(|&text| text.to_owned()).collect();
    RouteSpec { patterns, policy: (!policy.is_empty()).then(|| policy.to_owned()), ..RouteSpec::default() }
}

fn domain(specs: Vec<RouteSpec>) -> Domain {
    let set = RouteSet::compile(&BTreeMap::from([("d".to_owned(), specs)]), |_| None).expect("they are right");
    set.domain("d").expect("it was given").clone()
}

fn goes<'d>(domain: &'d Domain, entries: &[Entry<'_>]) -> Option<(&'d str, String)> {
    let route = domain.find(entries)?;
    Some((route.policy.as_deref()?, String::from_utf8(route.key(entries).into()).expect("text")))
}

fn to(policy: &str, key: &str) -> Option<(&'static str, String)> {
    Some((Box::leak(policy.to_owned().into_boxed_str()), key.to_owned()))
}

#[test]
fn the_first_route_that_fits_wins_and_the_length_counts() {
    let domain = domain(vec![
        spec(&["path=/login", "ip"], "login"),
        spec(&["path=/api/*/items*", "ip=*"], "items"),
        spec(&["path", "ip=10.*"], "inside"),
        spec(&["path"], "path"),
        spec(&["path=/login"], "never"),
    ]);
    assert_eq!(goes(&domain, &[("path", "/login"), ("ip", "1.2.3.4")]), to("login", "1.2.3.4"));
    assert_eq!(goes(&domain, &[("path", "/api/7/items/9"), ("ip", "1")]), to("items", "/api/7/items/9|1"));
    assert_eq!(goes(&domain, &[("path", "/x"), ("ip", "10.0.0.1")]), to("inside", "/x|10.0.0.1"));
    assert_eq!(goes(&domain, &[("path", "/x"), ("ip", "11.0.0.1")]), None);
    assert_eq!(goes(&domain, &[("path", "/login")]), to("path", "/login"));
    assert_eq!(goes(&domain, &[("ip", "1"), ("path", "/login")]), None);
    assert_eq!(goes(&domain, &[]), None);
}

#[test]
fn a_route_without_policy_ends_the_search_and_rest_takes_all_that_follows() {
    let domain = domain(vec![spec(&["a=x", "..."], ""), spec(&["a", "b"], "ab"), spec(&["..."], "any")]);
    assert_eq!(goes(&domain, &[("a", "x"), ("b", "1")]), None);
    assert_eq!(goes(&domain, &[("a", "y"), ("b", "1")]), to("ab", "y|1"));
    assert_eq!(goes(&domain, &[("c", "y"), ("b", "1")]), to("any", ""));
}

#[test]
fn a_star_takes_anything_between_and_parts_never_overlap() {
    let fits = |pattern: &str, value: &str| Pattern::parse(pattern).expect("it is right").fits(&("k", value));
    assert!(fits("k=a*b*c", "abc") && fits("k=a*b*c", "a--b--c") && !fits("k=a*b*c", "ac"));
    assert!(!fits("k=ab*ba", "aba") && fits("k=ab*ba", "abba") && fits("k=*", "") && fits("k=", ""));
    assert!(fits(r"k=\*", "*") && !fits(r"k=\*", "x") && fits(r"k=\\*", r"\x") && fits("k=é*", "éa"));
}

#[test]
fn keys_of_different_values_differ() {
    let domain = domain(vec![spec(&["a", "b"], "p"), spec(&["a=x"], "p"), spec(&["c"], "p")]);
    assert_eq!(goes(&domain, &[("a", "1|2"), ("b", "3")]), to("p", r"1\|2|3"));
    assert_eq!(goes(&domain, &[("a", "1"), ("b", "2|3")]), to("p", r"1|2\|3"));
    assert_eq!(goes(&domain, &[("a", r"1\"), ("b", "2")]), to("p", r"1\\|2"));
    assert_eq!(goes(&domain, &[("c", "1|2")]), to("p", r"1\|2"));
    assert_eq!(goes(&domain, &[("a", "x")]), to("p", "x"), "no value is open: all of them");
    assert_ne!(whole_key("d", &[("a", "b|c")]), whole_key("d", &[("a", "b"), ("c", "")]));
    assert_ne!(whole_key("d|a", &[("b", "")]), whole_key("d", &[("a", "b")]));
}

#[test]
fn named_entries_make_the_key() {
    let named = RouteSpec { key: Some(vec!["a".into()]), ..spec(&["a=x", "b", "a"], "p") };
    let all = RouteSpec { key: Some(Vec::new()), ..spec(&["c"], "p") };
    let domain = domain(vec![named, all]);
    assert_eq!(goes(&domain, &[("a", "x"), ("b", "1"), ("a", "2")]), to("p", "x|2"));
    assert_eq!(goes(&domain, &[("c", "1")]), to("p", ""));
}

#[test]
fn everything_that_is_wrong_is_reported_at_its_place() {
    let routes = vec![
        RouteSpec { key: Some(vec!["b".into()]), replaces: vec!["q".into()], ..spec(&["a", "=v"], "p") },
        RouteSpec { key: Some(Vec::new()), ..spec(&["...", "k*=v", r"k=\n"], "") },
        spec(&[], "known"),
    ];
    let specs = BTreeMap::from([("d".to_owned(), routes)]);
    let errors = RouteSet::compile(&specs, |name| (name != "known").then(|| format!("there is no policy {name:?}")))
        .expect_err("much is wrong");
    let seen: Vec<_> = errors.iter().map(|error| (error.route, error.part)).collect();
    let wanted = [
        (0, ("match", Some(1))),
        (0, ("policy", None)),
        (0, ("replaces", Some(0))),
        (0, ("key", Some(0))),
        (1, ("match", Some(0))),
        (1, ("match", Some(1))),
        (1, ("match", Some(2))),
        (1, ("key", None)),
        (2, ("match", None)),
    ];
    assert_eq!(seen, wanted);
    assert_eq!(errors[1].to_string(), "descriptors.d.0: there is no policy \"p\"");
}
