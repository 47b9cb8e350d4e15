//! Tests of the configuration: the documented file, unknown keys, variables, ranges.

use std::path::Path;

use evenkeel_core::unit::Bytes;

use super::*;

fn read(text: &str) -> Result<Config, String> {
    read_with(text, &[])
}

fn read_with(text: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
    let variables = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Config::from_text("test.toml", text, variables).map_err(|e| e.to_string())
}

#[track_caller]
fn refused(text: &str, says: &[&str]) {
    let message = read(text).expect_err(text);
    for part in says {
        assert!(
            message.contains(part),
            "{text}\nsays: {message}\nnot: {part}"
        );
    }
}

fn shipped(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../config")
        .join(name);
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn the_documented_file_says_every_key_and_nothing_else_than_the_defaults() {
    let text = shipped("evenkeeld.toml");
    assert_eq!(read(&text).unwrap(), Config::default());
    let table: toml::Table = toml::from_str(&text).unwrap();
    let keys = load::known_keys();
    assert!(keys.len() > 40, "the defaults have keys: {keys:?}");
    for key in keys {
        let mut here = Some(&toml::Value::Table(table.clone())).cloned();
        for part in key.split('.') {
            here = here.and_then(|value| value.get(part).cloned());
        }
        assert!(here.is_some(), "evenkeeld.toml does not say `{key}`");
    }
}

#[test]
fn the_examples_in_the_documented_file_are_right() {
    let text = shipped("evenkeeld.toml")
        .replace("\n[tenants.uids]", "")
        .replace("\n[tenants.certificates]", "")
        .replace("\n[tenants.tokens]", "")
        .replace("\n[tenants.caps]", "")
        .replace("\n[gpu.modes]", "")
        .replace("#   ", "");
    let config = read(&text).unwrap();
    assert_eq!(config.tenants.uids.len(), 2);
    assert_eq!(config.tenants.certificates.len(), 1);
    assert_eq!(config.tenants.tokens.len(), 1);
    let robotics = evenkeel_core::id::Name::new("robotics").unwrap();
    let cap = config.tenants.caps().of(&robotics);
    assert_eq!(cap.cores, Some(32));
    assert_eq!(cap.memory_per_gpu, Some(Bytes::gib(40)));
    assert_eq!(config.gpu_mode(1), GpuMode::Observe);
    assert_eq!(config.gpu_mode(0), GpuMode::Enforce);
}

#[test]
fn the_laptop_file_is_right() {
    let config = read(&shipped("emulated.toml")).unwrap();
    assert_eq!(config.gpu.backend, GpuSource::Emulated);
    assert_eq!(config.socket_mode(), 0o600);
}

#[test]
fn nothing_is_needed() {
    assert_eq!(read("").unwrap(), Config::default());
    assert_eq!(Config::default().settings(), Settings::default());
    assert!(Config::default().check().is_empty());
}

#[test]
fn an_unknown_key_is_refused_with_its_place_and_the_nearest_one() {
    refused(
        "[leases]\ngrace_ms = 1\nttl_mss = 5\n",
        &[
            "test.toml:3:1",
            "`leases.ttl_mss`",
            "did you mean `leases.ttl_ms`?",
        ],
    );
    // The right key in the wrong table.
    refused(
        "ttl_ms = 5",
        &["test.toml:1:1", "did you mean `leases.ttl_ms`?"],
    );
    // A table of a similar name.
    refused("[lease]\n", &["did you mean `leases`?"]);
    // Nothing is near: what there is.
    refused(
        "[log]\nxyzzy = 1\n",
        &["unknown key `log.xyzzy`", "`level`", "`format`"],
    );
    // All of them at once.
    refused(
        "[log]\nlevl = 1\nformt = 1\n",
        &["`log.level`", "`log.format`"],
    );
    refused(
        "log = 1",
        &["`log` is a table with the keys `format`, `level`"],
    );
    refused(
        "[tenants.uids]\n5 = { tenant = \"a\", rule = \"user\" }",
        &["unknown field `rule`"],
    );
}

#[test]
fn a_wrong_type_or_syntax_is_refused_with_its_place() {
    refused(
        "[leases]\nttl_ms = \"soon\"\n",
        &["test.toml:2:10", "invalid type"],
    );
    refused("[leases\n", &["test.toml:1:"]);
    refused(
        "[node]\npool = \"imaginary\"",
        &["test.toml:2:8", "local", "synthetic"],
    );
}

#[test]
fn a_line_of_the_tenant_map_that_nobody_matches_is_refused() {
    for uid in ["+1000", "01000", "bob", "", "4294967296"] {
        let line = format!("[tenants.uids]\n\"{uid}\" = {{ tenant = \"a\" }}");
        refused(&line, &["is not a numeric user id"]);
    }
    for (uri, why) in [
        ("spiffe://other/tenant/a", "trust domain"),
        ("spiffe://evenkeel/tenant/a/", "is no SPIFFE ID"),
        ("spiffe://evenkeel/a", "is no SPIFFE ID"),
        ("https://evenkeel/tenant/a", "is no SPIFFE ID"),
    ] {
        let line = format!("[tenants.certificates]\n\"{uri}\" = {{ tenant = \"a\" }}");
        refused(&line, &[uri, why]);
    }
    let good = "[tenants.certificates]\n\"spiffe://evenkeel/tenant/a/job/b\" = { tenant = \"a\" }";
    assert_eq!(read(good).unwrap().tenants.certificates.len(), 1);
    refused(
        "[tenants.caps.a]\nrequests_per_s = 0",
        &["tenants.caps.a.requests_per_s", "would be no limit"],
    );
}

#[test]
fn a_collectors_address_is_one() {
    for endpoint in [
        "127.0.0.1:4317",
        "https://collector:4317",
        "http://collector",
        "http://:4317",
        "http://collector:0",
        "http://collector:4317/v1/traces",
        "http://collector:4317?x=1",
        "http://me:word@collector:4317",
    ] {
        let line = format!("[traces]\nendpoint = {endpoint:?}");
        refused(&line, &["traces.endpoint", endpoint, "OTLP over gRPC"]);
    }
    refused("[traces]\nsample = 1.5", &["traces.sample", "from 0 to 1"]);
    let good = read("[traces]\nendpoint = \"http://127.0.0.1:4317\"").unwrap();
    assert_eq!(good.traces.endpoint, "http://127.0.0.1:4317");
}

#[test]
fn values_out_of_range_say_what_would_be_right() {
    refused(
        "[leases]\nttl_ms = 1",
        &["leases.ttl_ms: 1 is out of range", "from 1000 to 3600000"],
    );
    refused(
        "[listen]\ntcp = \"127.0.0.1:1\"",
        &["listen.tcp", "insecure_tcp = true"],
    );
    refused("[listen]\nrest = \"0.0.0.0:80\"", &["not on loopback"]);
    refused(
        "[listen]\nrest = \"nowhere\"",
        &["no address", "127.0.0.1:7420"],
    );
    refused("[listen]\nsocket_mode = \"rw\"", &["octal"]);
    refused("[listen]\nsocket = \"\"", &["listen.socket"]);
    refused("[log]\nlevel = \"a=b=c\"", &["log.level"]);
    refused(
        "[tenants.uids]\nbob = { tenant = \"a\" }",
        &["`bob` is not a numeric user id"],
    );
    refused(
        "[gpu]\nbackend = \"emulated\"\n[gpu.emulated]\nmodel = \"b200\"",
        &["no preset `b200`", "h100"],
    );
    refused(
        "[gpu]\nbackend = \"emulated\"\nreserved_memory = \"1TiB\"",
        &["leaves nothing"],
    );
    refused(
        "[node]\npool = \"synthetic\"\n[gpu]\nbackend = \"emulated\"",
        &["gpu.backend"],
    );
    // All at once.
    let both = "[leases]\nttl_ms = 1\n[limits]\njobs = 0\n";
    refused(both, &["leases.ttl_ms", "limits.jobs"]);
}

#[test]
fn variables_go_over_the_file() {
    let text = "[leases]\nttl_ms = 20000\n[node]\nname = \"a\"\n";
    let config = read_with(
        text,
        &[
            ("EVENKEEL__LEASES__TTL_MS", "10000"),
            ("EVENKEEL__NODE__NAME", "17"),
            ("EVENKEEL__NODE__RESERVE_CORES", "2"),
            ("EVENKEEL__GPU__EMULATED__START", "false"),
            ("EVENKEEL__GPU__MODES__1", "observe"),
            ("EVENKEEL__SYNTHETIC__MEMORY", "10GiB"),
            ("EVENKEEL__LISTEN__REST", ""),
            ("EVENKEEL_LEASE_ID", "not ours"),
        ],
    );
    let config = config.unwrap();
    assert_eq!(config.leases.ttl_ms, 10_000);
    assert_eq!(config.node.name, "17", "a name may look like a number");
    assert_eq!(config.node.reserve_cores, Reserve::Cores(2));
    assert!(!config.gpu.emulated.start);
    assert_eq!(config.gpu_mode(1), GpuMode::Observe);
    assert_eq!(config.synthetic.memory, Size(Bytes::gib(10)));
    assert_eq!(config.listen.rest, "");
}

#[test]
fn a_wrong_variable_is_named() {
    let check = |name: &str, value: &str, says: &str| {
        let message = read_with("", &[(name, value)]).expect_err(name);
        assert!(message.starts_with(name), "{message}");
        assert!(message.contains(says), "{message}");
    };
    check(
        "EVENKEEL__LEASES__TTL_MS",
        "soon",
        "`leases.ttl_ms` cannot be `soon`",
    );
    check(
        "EVENKEEL__LEASES__TTL",
        "1",
        "did you mean `leases.ttl_ms`?",
    );
    check("EVENKEEL__LEASES", "1", "is a table");
    check(
        "EVENKEEL__LEASES__TTL_MS__X",
        "1",
        "is a value, not a table",
    );
}

#[test]
fn doors_are_opened_by_name_and_with_all_that_they_need() {
    let tls = "[tls]\ncertificate = \"c\"\nkey = \"k\"\nclient_ca = \"a\"\n";
    let tcp = "[listen]\ntcp = \"0.0.0.0:7421\"\n";
    assert!(read(&format!("{tcp}{tls}")).is_ok());
    assert!(read(&format!("{tcp}insecure_tcp = true\n")).is_ok());
    refused(
        tcp,
        &["listen.tcp: plain TCP believes", "evenkeel cert init"],
    );
    refused(tls, &["listen.tcp: empty, and [tls] is set"]);
    refused(
        &format!("{tcp}insecure_tcp = true\n{tls}"),
        &["it is one or the other"],
    );
    refused(
        &format!("{tcp}[tls]\ncertificate = \"c\"\n"),
        &["tls.key: empty", "tls.client_ca: empty"],
    );
    refused(
        &format!("{tcp}{tls}trust_domain = \"Lab\"\n"),
        &["`Lab` is no SPIFFE trust domain"],
    );
    refused(
        "[tenants.certificates]\n\"CN=x\" = { tenant = \"a\" }",
        &["is no SPIFFE ID"],
    );
    refused(
        "[tenants.tokens]\nabc = { tenant = \"a\" }",
        &["is no SHA-256"],
    );
    let digest = "a".repeat(64);
    refused(
        &format!("[tenants.tokens]\n{digest} = {{ tenant = \"a\", expires = 2027-01-31 }}"),
        &["expires needs a date, a time and an offset"],
    );
}
