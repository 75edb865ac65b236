package policy_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft"
	"weft/policy"
)

// facts are some people, and a network with the addresses of machine.
var facts = policy.Facts{
	Users: []policy.User{
		{Name: "ann"}, {Name: "bob"}, {Name: "cid@example.org"},
		{Name: "dan", Issuer: "https://sso.example.org/realms/main/", Groups: []string{"/admins", "eng"}},
		{Name: "eve", Issuer: "https://sso.example.org/realms/main/", Groups: []string{"eng"}},
		{Name: "fay", Issuer: "https://evil.example", Groups: []string{"/admins"}},
	},
	Ranges: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fd00::/48")},
}

// compiled is the policy of a document in which nothing is wrong.
func compiled(t testing.TB, text string) *policy.Policy {
	t.Helper()
	d, problems := policy.Parse([]byte(text))
	if d == nil {
		t.Fatalf("%s\nis refused: %v", text, problems)
	}
	p, more := d.Compile(facts)
	if policy.Refused(more) {
		t.Fatalf("%s\nis refused: %v", text, more)
	}
	return p
}

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// world has one machine of each sort.
func world() map[string]weft.Node {
	w := map[string]weft.Node{
		"ann": machine(1, "ann"), "bob": machine(2, "bob"), "cid": machine(3, "cid@example.org"), "dan": machine(4, "dan"),
		"eve": machine(5, "eve"), "fay": machine(6, "fay"), "nobody": machine(7, ""), "ann2": machine(8, "ann"),
		"web": machine(10, "", "tag:web"), "db": machine(11, "bob", "tag:db"), "both": machine(12, "", "tag:db", "tag:web"),
		"router": machine(20, "bob"), "exit": machine(21, "", "tag:exit"),
	}
	r := w["router"]
	r.Routes = prefixes("192.168.7.0/24", "2001:db8:7::/64")
	w["router"] = r
	x := w["exit"]
	x.Routes = prefixes("0.0.0.0/0", "::/0")
	w["exit"] = x
	return w
}

// ask reads "FROM AT TO PROTO:PORT": who begins it, who judges it, and towards what: "-" is AT's IPv4 address, "6" its IPv6
// address. "FROM/ADDRESS" is somebody behind FROM.
func ask(t testing.TB, p *policy.Policy, question string) (string, bool) {
	t.Helper()
	w := world()
	f := strings.Fields(question)
	name, address, behind := strings.Cut(f[0], "/")
	from, ok1 := w[name]
	at, ok2 := w[f[1]]
	port, err := weft.ParsePortRange(f[3])
	if !ok1 || !ok2 || err != nil {
		t.Fatalf("%q is no question: %v", question, err)
	}
	to := at.Addrs[0]
	source := from.Addrs[0]
	switch f[2] {
	case "-":
	case "6":
		to, source = at.Addrs[1], from.Addrs[1]
	default:
		to = netip.MustParseAddr(f[2])
	}
	if behind {
		source = netip.MustParseAddr(address)
	}
	r, ok := policy.Allows(p.Rules(at), at, policy.Flow{Sender: from, From: source, To: to, Proto: port.Proto, Port: port.First})
	return r.Why, ok
}

func TestWhatADocumentAllowsAndWhatItDoesNot(t *testing.T) {
	for _, c := range []struct {
		what, text string
		yes, no    []string
	}{
		{
			"an empty document lets nothing in", `{}`, nil,
			[]string{"ann ann2 - tcp:22", "ann web - tcp:80"},
		},
		{
			"everybody reaches everything",
			`{"acls": [{"action": "accept", "src": ["*"], "dst": ["*:*"]}]}`,
			[]string{"ann bob - tcp:22", "web ann 6 47:0", "nobody router 192.168.7.1 udp:9", "ann exit 8.8.8.8 tcp:443", "router/192.168.7.3 ann - tcp:1"}, nil,
		},
		{
			"a tag's ports, for a group",
			`{"groups": {"group:eng": ["ann", "cid@example.org"]}, "tagOwners": {"tag:web": []},
			"acls": [{"action": "accept", "src": ["group:eng"], "dst": ["tag:web:80,443", "tag:web:8000-8010"]}]}`,
			[]string{"ann web - tcp:80", "cid both 6 udp:443", "ann2 web - tcp:8005", "ann web - icmp", "ann web 6 ipv6-icmp"},
			[]string{"bob web - tcp:80", "ann web - tcp:22", "ann db - tcp:80", "web both - tcp:80", "ann web - 47", "ann web - sctp:80"},
		},
		{
			"a protocol alone",
			`{"acls": [{"action": "accept", "proto": "tcp", "src": ["ann"], "dst": ["bob:22"]},
			{"action": "accept", "proto": "icmp", "src": ["ann"], "dst": ["cid@example.org:*"]},
			{"action": "accept", "proto": "47", "src": ["ann"], "dst": ["dan:*"]}]}`,
			[]string{"ann bob - tcp:22", "ann cid - icmp", "ann cid 6 ipv6-icmp", "ann dan - 47"},
			[]string{"ann bob - udp:22", "ann bob - icmp", "ann cid - tcp:22", "ann dan - 50"},
		},
		{
			"one's own machines",
			`{"acls": [{"action": "accept", "src": ["autogroup:member"], "dst": ["autogroup:self:*"]}]}`,
			[]string{"ann ann2 - tcp:22", "nobody nobody - tcp:1", "bob router - tcp:1"},
			[]string{"ann bob - tcp:22", "ann nobody - tcp:22", "db bob - tcp:1", "bob db - tcp:1", "bob router 192.168.7.1 tcp:1", "web web - tcp:1"},
		},
		{
			"one's own machines, of some",
			`{"acls": [{"action": "accept", "src": ["bob"], "dst": ["autogroup:self:22"]}]}`,
			[]string{"bob router - tcp:22"}, []string{"ann ann2 - tcp:22", "bob router - tcp:23", "ann bob - tcp:22"},
		},
		{
			"members and tagged machines",
			`{"grants": [{"src": ["autogroup:member"], "dst": ["autogroup:tagged"], "ip": ["tcp:443", "udp:*", "icmp:*"]},
			{"src": ["autogroup:tagged"], "dst": ["autogroup:member"], "ip": ["22"]}]}`,
			[]string{"ann web - tcp:443", "nobody db 6 udp:7", "ann web - icmp", "web ann - tcp:22", "db nobody - icmp"},
			[]string{"ann web - tcp:80", "web db - tcp:443", "ann bob - tcp:443", "ann bob - tcp:22", "web ann - tcp:23"},
		},
		{
			"everything between two",
			`{"grants": [{"src": ["ann"], "dst": ["bob"], "ip": ["22", "*"]}]}`,
			[]string{"ann bob - tcp:9", "ann bob - 50"}, []string{"bob ann - tcp:9"},
		},
		{
			"addresses and networks",
			`{"hosts": {"printer": "192.168.7.9", "lan": "192.168.7.0/24", "lab": "2001:db8:7::/64", "one": "100.64.0.10"},
			"acls": [{"action": "accept", "src": ["ann"], "dst": ["printer:631", "one:80", "[2001:db8:7::5]:22", "lab:443", "100.64.0.0/16:9"]},
			{"action": "accept", "src": ["lan"], "dst": ["bob:25"]}, {"action": "accept", "src": ["100.64.0.2"], "dst": ["[fd00::1]:26"]}]}`,
			[]string{"ann router 192.168.7.9 tcp:631", "ann web - tcp:80", "ann router 2001:db8:7::5 tcp:22", "ann router 2001:db8:7::77 tcp:443",
				"router/192.168.7.4 bob - tcp:25", "ann bob - tcp:9", "ann router - udp:9", "ann exit 192.168.7.9 tcp:631"},
			[]string{"ann router 192.168.7.8 tcp:631", "ann router - tcp:631", "ann web 6 tcp:80", "bob router 192.168.7.9 tcp:631", "ann router 2001:db8:7::6 tcp:22",
				"router bob - tcp:25", "ann exit 100.64.3.3 tcp:9", "ann bob 6 tcp:9", "bob ann - tcp:26"},
		},
		{
			"sets of addresses",
			`{"hosts": {"door": "192.168.7.1"}, "ipsets": {"ipset:lan": ["192.168.7.0/24", "remove 192.168.7.128/25", "remove door", "add 192.168.7.200"]},
			"grants": [{"src": ["ann"], "dst": ["ipset:lan"], "ip": ["tcp:80"]}]}`,
			[]string{"ann router 192.168.7.2 tcp:80", "ann router 192.168.7.127 tcp:80", "ann router 192.168.7.200 tcp:80"},
			[]string{"ann router 192.168.7.1 tcp:80", "ann router 192.168.7.128 tcp:80", "ann router 192.168.7.255 tcp:80"},
		},
		{
			"the Internet by an exit node, with its names",
			`{"acls": [{"action": "accept", "src": ["ann"], "dst": ["autogroup:internet:443"]}]}`,
			[]string{"ann exit 8.8.8.8 tcp:443", "ann exit 2001:4860::8 udp:443", "ann exit - udp:53", "ann exit 6 tcp:53", "ann exit 8.8.8.8 icmp"},
			[]string{"ann exit 8.8.8.8 tcp:80", "bob exit 8.8.8.8 tcp:443", "ann exit 192.168.7.9 tcp:443", "ann exit 10.1.1.1 tcp:443", "ann exit 100.64.0.1 tcp:443",
				"ann exit fd00::1 tcp:443", "ann exit 169.254.169.254 tcp:443", "ann exit 127.0.0.1 tcp:443", "ann exit 224.0.0.1 udp:443", "ann exit - tcp:443",
				"ann router - udp:53", "bob exit - udp:53"},
		},
		{
			"groups of a provider",
			`{"groups": {"group:staff": ["bob", "group:eng@sso.example.org/realms/main"]},
			"acls": [{"action": "accept", "src": ["group:/admins@sso.example.org/realms/main"], "dst": ["bob:22"]},
			{"action": "accept", "src": ["group:staff"], "dst": ["ann:80"]}]}`,
			[]string{"dan bob - tcp:22", "dan ann - tcp:80", "eve ann - tcp:80", "bob ann - tcp:80"},
			[]string{"fay bob - tcp:22", "eve bob - tcp:22", "fay ann - tcp:80", "cid ann - tcp:80"},
		},
		{
			"what other programs write: names in any case, a trailing @, comments, trailing commas, old names of fields",
			"// a policy\n{\"ACLs\": [/* one */ {\"Action\": \"accept\", \"Users\": [\"ann@\"], \"Ports\": [\"bob@:22\",]},],}",
			[]string{"ann bob - tcp:22"}, []string{"bob ann - tcp:22"},
		},
		{
			"a group without members is nobody",
			`{"groups": {"group:none": []}, "acls": [{"action": "accept", "src": ["group:none"], "dst": ["*:*"]}, {"action": "accept", "src": ["*"], "dst": ["group:none:*"]}]}`,
			nil, []string{"ann bob - tcp:22", "nobody nobody - tcp:22"},
		},
	} {
		t.Run(c.what, func(t *testing.T) {
			p := compiled(t, c.text)
			for _, q := range c.yes {
				if why, ok := ask(t, p, q); !ok || !strings.Contains(why, "line ") {
					t.Errorf("%s: %v %q", q, ok, why)
				}
			}
			for _, q := range c.no {
				if why, ok := ask(t, p, q); ok {
					t.Errorf("%s is allowed by %s", q, why)
				}
			}
		})
	}
}

func TestARuleSaysWhereInTheDocumentItIsFrom(t *testing.T) {
	p := compiled(t, "{\n\"acls\": [\n{\"action\": \"accept\", \"src\": [\"ann\"], \"dst\": [\"bob:22\"]},\n\n{\"action\": \"accept\", \"src\": [\"ann\"], \"dst\": [\"bob:23\"]}],\n\"grants\": [{\"src\": [\"ann\"], \"dst\": [\"bob\"], \"ip\": [\"24\"]}]}")
	for question, want := range map[string]string{"ann bob - tcp:22": "acls[0], line 3", "ann bob - tcp:23": "acls[1], line 5", "ann bob - tcp:24": "grants[0], line 6"} {
		if why, _ := ask(t, p, question); why != want {
			t.Errorf("%s: %q, not %q", question, why, want)
		}
	}
}

func TestWhatIsWrongInADocumentIsSaidWithLineAndColumn(t *testing.T) {
	acl := func(src, dst string) string {
		return fmt.Sprintf("{\"acls\": [\n  {\"action\": \"accept\", \"src\": [%s], \"dst\": [%s]}]}", src, dst)
	}
	for _, c := range []struct {
		text         string
		line, column int
		words        string
	}{
		{"", 1, 1, "no JSON"},
		{"[]", 1, 1, "an object"},
		{"{\n  \"acls\": [}\n}", 2, 12, "no JSON"},
		{"{\"acls\": []} x", 1, 14, "no JSON"},
		{"{\n\t\"acl\": []}", 2, 2, "tagOwners"},
		{"{\"acls\": [],\n \"acls\": []}", 2, 2, "twice"},
		{`{"acls": {}}`, 1, 10, "a list"},
		{`{"acls": ["x"]}`, 1, 11, "an object"},
		{`{"acls": [{"src": ["*"], "dst": ["*:*"]}]}`, 1, 11, `no "action"`},
		{`{"acls": [{"action": "accept", "dst": ["*:*"]}]}`, 1, 11, `no "src"`},
		{`{"acls": [{"action": "accept", "src": ["*"]}]}`, 1, 11, `no "dst"`},
		{`{"acls": [{"action": "drop", "src": ["*"], "dst": ["*:*"]}]}`, 1, 22, "accept"},
		{`{"acls": [{"action": "accept", "src": "*", "dst": ["*:*"]}]}`, 1, 39, "a list"},
		{`{"acls": [{"action": "accept", "src": [7], "dst": ["*:*"]}]}`, 1, 40, "a string"},
		{`{"acls": [{"action": "accept", "src": ["*"], "dst": ["*:*"], "proto": "quic"}]}`, 1, 71, "no protocol"},
		{`{"acls": [{"action": "accept", "src": ["*"], "dst": ["*:22"], "proto": "icmp"}]}`, 1, 54, "no ports"},
		{`{"acls": [{"action": "accept", "src": ["*"], "dst": ["*:*"], "srcPosture": ["x"]}]}`, 1, 62, "cannot ask"},
		{acl(`"é", "zed"`, `"*:*"`), 2, 32, "é"},
		{acl(`"ann", "zed"`, `"*:*"`), 2, 39, "zed"},
		{acl(`"*"`, `"tag:web:22"`), 2, 46, "tagOwners"},
		{acl(`"*"`, `"bob"`), 2, 46, "bob:22"},
		{acl(`"*"`, `"tag:web"`), 2, 46, "tag:web:22"},
		{acl(`"*"`, `"bob:http"`), 2, 46, "which ports"},
		{acl(`"*"`, `"bob:70000"`), 2, 46, "no port"},
		{acl(`"*"`, `"bob:9-3"`), 2, 46, "no port"},
		{acl(`"*"`, `"bob:1,,2"`), 2, 46, "no port"},
		{acl(`"*"`, `"fd00::1"`), 2, 46, "[fd00::1]:22"},
		{acl(`"group:x"`, `"*:*"`), 2, 32, "groups"},
		{acl(`"autogroup:admin"`, `"*:*"`), 2, 32, "runs the server"},
		{acl(`"autogroup:shared"`, `"*:*"`), 2, 32, "autogroup:member"},
		{acl(`"autogroup:self"`, `"*:*"`), 2, 32, "only be a destination"},
		{acl(`"autogroup:internet"`, `"*:*"`), 2, 32, "only be a destination"},
		{acl(`"100.64.0.1"`, `"autogroup:self:*"`), 2, 55, "is no user"},
		{acl(`"ipset:x"`, `"*:*"`), 2, 32, "ipsets"},
		{`{"grants": [{"src": ["*"], "dst": ["*"]}]}`, 1, 13, `no "ip"`},
		{`{"grants": [{"src": ["*"], "dst": ["*"], "ip": []}]}`, 1, 48, "lets nothing in"},
		{`{"grants": [{"src": ["*"], "dst": ["*"], "ip": ["tcp"]}]}`, 1, 49, "no port"},
		{`{"grants": [{"src": ["*"], "dst": ["*"], "ip": ["*"], "app": {}}]}`, 1, 55, "programs"},
		{`{"grants": [{"src": ["*"], "dst": ["*"], "ip": ["*"], "via": ["tag:x"]}]}`, 1, 55, "exit node"},
		{`{"groups": {"eng": []}}`, 1, 13, "group:NAME"},
		{`{"groups": {"group:eng@x": []}}`, 1, 13, "without an @"},
		{`{"groups": {"group:eng": ["group:ops"]}}`, 1, 27, "its members are users"},
		{`{"groups": {"group:eng": ["zed"]}}`, 1, 27, "zed"},
		{`{"tagOwners": {"web": []}}`, 1, 16, "tag:NAME"},
		{`{"tagOwners": {"tag:Web": []}}`, 1, 16, "lower-case"},
		{`{"tagOwners": {"tag:web": ["*"]}}`, 1, 28, "name users"},
		{`{"hosts": {"a": "1.2.3"}}`, 1, 17, "192.0.2.7"},
		{`{"hosts": {"a:b": "1.2.3.4"}}`, 1, 12, "host's name"},
		{`{"hosts": {"ann": "1.2.3.4"}}`, 1, 12, "a user, too"},
		{`{"ipsets": {"lan": []}}`, 1, 13, "ipset:NAME"},
		{`{"ipsets": {"ipset:lan": ["ann"]}}`, 1, 27, "what a set"},
		{`{"autoApprovers": {"routes": {"lan": ["ann"]}}}`, 1, 31, "no network"},
		{`{"autoApprovers": {"routes": {"10.0.0.0/8": ["zed"]}}}`, 1, 46, "zed"},
		{`{"autoApprovers": {"exitNode": ["*"]}}`, 1, 33, "name users"},
		{`{"autoApprovers": {"services": {}}}`, 1, 20, "routes and exitNode"},
		{`{"tests": [{"accept": ["bob:22"]}]}`, 1, 12, `no "src"`},
		{`{"tests": [{"src": "ann"}]}`, 1, 12, "asks nothing"},
		{`{"tests": [{"src": "ann", "deny": ["bob"]}]}`, 1, 36, "bob:22"},
		{`{"tests": [{"src": "ann", "deny": ["bob:1-2"]}]}`, 1, 36, "bob:22"},
		{`{"tests": [{"src": "*", "deny": ["bob:1"]}]}`, 1, 20, "src of a test"},
		{`{"tests": [{"src": "ann", "deny": ["*:1"]}]}`, 1, 36, "destination of a test"},
		{`{"defaultSrcPosture": []}`, 1, 2, "cannot ask"},
		{strings.Repeat("[", 100_000), 1, 33, "brackets"},
		{strings.Repeat(" ", policy.MaxText+1), 1, 1, "may have"},
	} {
		d, problems := policy.Parse([]byte(c.text))
		if d != nil {
			_, problems = d.Compile(facts)
		}
		if len(problems) == 0 || !policy.Refused(problems) {
			t.Errorf("%.200s is taken", c.text)
			continue
		}
		if p := problems[0]; p.Line != c.line || p.Column != c.column || !strings.Contains(p.Message, c.words) {
			t.Errorf("%.200s: %v, want line %d, column %d and %q", c.text, p, c.line, c.column, c.words)
		}
	}
}

func TestBracketsInStringsAndCommentsAreNoBrackets(t *testing.T) {
	many := strings.Repeat("[", 100)
	compiled(t, "// "+many+"\n/* "+many+" */ {\"groups\": {\"group:a\\\""+many+"\": []}} // "+many)
}

func TestWhatWeftHasNothingForIsLeftOutWithAWarning(t *testing.T) {
	_, problems := policy.Parse([]byte("{\"ssh\": [],\n\"nodeAttrs\": [], \"acls\": []}"))
	if len(problems) != 2 || policy.Refused(problems) || problems[1].Line != 2 || problems[1].Column != 1 || !strings.Contains(problems[0].Message, "tcp:22") {
		t.Errorf("%v", problems)
	}
	d, _ := policy.Parse([]byte(`{"groups": {"group:x": ["group:a@nowhere.example"]}}`))
	if _, problems := d.Compile(facts); len(problems) != 1 || !problems[0].Warning || !strings.Contains(problems[0].Message, "nobody has signed in by nowhere.example") {
		t.Errorf("%v", problems)
	}
}

func TestADocumentsTestsAreMade(t *testing.T) {
	const rules = `{"groups": {"group:eng": ["ann", "bob"]}, "tagOwners": {"tag:web": [], "tag:db": []}, "hosts": {"printer": "192.168.7.9"},
		"acls": [{"action": "accept", "src": ["group:eng"], "dst": ["tag:web:443", "printer:631", "autogroup:internet:443"]},
			{"action": "accept", "src": ["tag:web"], "dst": ["tag:db:5432"]},
			{"action": "accept", "src": ["autogroup:member"], "dst": ["autogroup:self:22"]},
			{"action": "accept", "proto": "icmp", "src": ["ann"], "dst": ["tag:db:*"]},
			{"action": "accept", "src": ["10.9.0.0/16"], "dst": ["tag:db:80"]}],
		"tests": [%s]}`
	for _, c := range []struct {
		test string
		ok   bool
	}{
		{`{"src": "ann", "accept": ["tag:web:443", "printer:631", "192.168.7.9:631", "autogroup:self:22", "autogroup:internet:443"], "deny": ["tag:web:80", "bob:22", "tag:db:5432"]}`, true},
		{`{"src": "group:eng", "accept": ["tag:web:443"]}`, true},
		{`{"src": "cid@example.org", "deny": ["tag:web:443", "printer:631"], "accept": ["cid@example.org:22"]}`, true},
		{`{"src": "tag:web", "accept": ["tag:db:5432"], "deny": ["tag:web:443"]}`, true},
		{`{"src": "ann", "proto": "icmp", "accept": ["tag:db:*"], "deny": ["bob:*"]}`, true},
		{`{"src": "bob", "proto": "icmp", "accept": ["tag:db:*"]}`, false},
		{`{"src": "10.9.1.1", "accept": ["tag:db:80"], "deny": ["tag:web:443"]}`, true},
		{`{"src": "10.8.1.1", "accept": ["tag:db:80"]}`, false},
		{`{"src": "ann", "accept": ["tag:web:80"]}`, false},
		{`{"src": "ann", "deny": ["tag:web:443"]}`, false},
		{`{"src": "group:eng", "accept": ["ann:22"]}`, false}, // bob may not
		{`{"src": "ann", "proto": "udp", "accept": ["tag:web:443"]}`, true},
		{`{"src": "ann", "proto": "sctp", "accept": ["tag:web:443"]}`, false},
		{`{"src": "ann", "accept": ["192.168.7.8:631"]}`, false},
		{`{"src": "ann", "accept": ["10.1.1.1:443"]}`, false}, // not the Internet
	} {
		d, problems := policy.Parse(fmt.Appendf(nil, rules, c.test))
		if d == nil {
			t.Fatalf("%s: %v", c.test, problems)
		}
		if _, problems = d.Compile(facts); policy.Refused(problems) == c.ok || !c.ok && !strings.Contains(problems[0].Message, "the test fails") {
			t.Errorf("%s: %v", c.test, problems)
		}
	}
	// Who is known to speak for an address is who is asked about.
	known := facts
	known.Speaker = func(a netip.Addr) (weft.Node, bool) {
		w := world()["both"]
		return w, slices.Contains(w.Addrs, a)
	}
	d, _ := policy.Parse(fmt.Appendf(nil, rules, `{"src": "ann", "accept": ["100.64.0.12:443"]}`))
	if _, problems := d.Compile(facts); !policy.Refused(problems) {
		t.Error("an address that nobody has is taken for a tagged machine's")
	}
	if _, problems := d.Compile(known); policy.Refused(problems) {
		t.Errorf("the address of a tagged machine: %v", problems)
	}
}

func TestTagsHaveOwnersAndRoutesApprovers(t *testing.T) {
	p := compiled(t, `{"groups": {"group:eng": ["ann"]},
		"tagOwners": {"tag:web": ["group:eng", "tag:deploy"], "tag:deploy": [], "tag:any": ["autogroup:member"]},
		"autoApprovers": {"routes": {"10.0.0.0/8": ["tag:web", "bob"], "2001:db8::/32": ["ann"]}, "exitNode": ["tag:deploy"]}}`)
	w := world()
	for _, c := range []struct {
		node, tag     string
		defined, owns bool
	}{
		{"ann", "tag:web", true, true}, {"bob", "tag:web", true, false}, {"bob", "tag:any", true, true}, {"ann", "tag:deploy", true, false}, {"ann", "tag:none", false, false},
	} {
		if defined, owns := p.Owns(w[c.node], c.tag); defined != c.defined || owns != c.owns {
			t.Errorf("%s and %s: %v, %v", c.node, c.tag, defined, owns)
		}
	}
	if defined, owns := policy.Default().Owns(w["bob"], "tag:x"); !defined || !owns {
		t.Error("without a document there are tags that are not to be given")
	}
	deploy := machine(30, "", "tag:deploy")
	for _, c := range []struct {
		node  weft.Node
		route string
		want  bool
	}{
		{w["web"], "10.0.0.0/8", true}, {w["web"], "10.1.2.0/24", true}, {w["bob"], "10.9.0.0/16", true}, {w["ann"], "10.9.0.0/16", false}, {w["web"], "8.0.0.0/6", false},
		{w["ann"], "2001:db8:1::/48", true}, {w["web"], "192.168.0.0/16", false}, {w["web"], "0.0.0.0/0", false}, {deploy, "0.0.0.0/0", true}, {deploy, "::/0", true}, {deploy, "10.0.0.0/8", false},
	} {
		if got := p.Approves(c.node, netip.MustParsePrefix(c.route)); got != c.want {
			t.Errorf("%v and %s: %v", c.node.Tags, c.route, got)
		}
	}
	if policy.Default().Approves(w["ann"], netip.MustParsePrefix("10.0.0.0/8")) {
		t.Error("without a document routes are approved by themselves")
	}
	if p.Names("ann") != 1 || p.Names("bob") != 3 || p.Names("eve") != 0 {
		t.Errorf("ann is named in line %d, bob in %d, eve in %d", p.Names("ann"), p.Names("bob"), p.Names("eve"))
	}
}
