package cli

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft"
	"weft/control"
	"weft/engine"
	"weft/golden"
	"weft/node"
)

// What scripts rely on: what each command prints with --json, and its exit code.

// settingsDoc is what weft set --json prints.
type settingsDoc struct {
	Schema int `json:"schema_version"`
	node.Settings
}

type doneDoc struct {
	Schema int  `json:"schema_version"`
	OK     bool `json:"ok"`
}

type versionDoc struct {
	Schema  int    `json:"schema_version"`
	Version string `json:"version"`
}

// documents are the types of what the commands print. Of several lines each is one.
var documents = map[string]any{
	"weft version":                       versionDoc{},
	"weft status":                        weft.Status{},
	"weft up":                            weft.Status{},
	"weft node":                          weft.Status{},
	"weft down":                          downDoc{},
	"weft rotate":                        doneDoc{},
	"weft logout":                        doneDoc{},
	"weft ping":                          weft.PingReply{},
	"weft explain":                       weft.Explanation{},
	"weft explain A B":                   weft.Access{},
	"weft paths":                         weft.Paths{},
	"weft metrics":                       weft.Metrics{},
	"weft netcheck":                      weft.Netcheck{},
	"weft set":                           settingsDoc{},
	"weft portal":                        weft.PortalStatus{},
	"weft portal remote":                 weft.PortalStatus{},
	"weft portal local":                  weft.PortalStatus{},
	"weft portal off":                    weft.PortalStatus{},
	"weft server":                        serverReady{},
	"weft admin status":                  control.Status{},
	"weft admin backup":                  backupDoc{},
	"weft admin restore":                 restoreDoc{},
	"weft admin user create":             control.UserAnswer{},
	"weft admin user list":               control.UsersAnswer{},
	"weft admin user rename":             control.UserAnswer{},
	"weft admin user expire":             control.UserAnswer{},
	"weft admin user disable":            control.UserAnswer{},
	"weft admin user link":               control.UserAnswer{},
	"weft admin user enable":             control.UserAnswer{},
	"weft admin user remove":             control.DoneAnswer{},
	"weft admin key create":              control.KeyAnswer{},
	"weft admin key list":                control.KeysAnswer{},
	"weft admin key expire":              control.KeyAnswer{},
	"weft admin key remove":              control.DoneAnswer{},
	"weft admin node create":             control.KeyAnswer{},
	"weft admin node create --wireguard": plainDoc{},
	"weft admin node list":               control.NodesAnswer{},
	"weft admin node rename":             control.NodeAnswer{},
	"weft admin node expire":             control.NodeAnswer{},
	"weft admin node move":               control.NodeAnswer{},
	"weft admin node tag":                control.NodeAnswer{},
	"weft admin node approve":            control.NodeAnswer{},
	"weft admin node disable":            control.NodeAnswer{},
	"weft admin node enable":             control.NodeAnswer{},
	"weft admin node remove":             control.DoneAnswer{},
	"weft admin relay list":              control.RelaysAnswer{},
	"weft admin policy get":              control.PolicyAnswer{},
	"weft admin policy set":              control.PolicyAnswer{},
	"weft admin policy check":            control.PolicyAnswer{},
	"weft admin policy unset":            control.PolicyAnswer{},
	"weft admin policy explain":          control.ExplainAnswer{},
	"weft admin dns get":                 control.DNSAnswer{},
	"weft admin dns set":                 control.DNSAnswer{},
	"weft admin dns replace":             control.DNSAnswer{},
}

// A field is a place in a document.
type field struct {
	path, kind string
	optional   bool
}

var (
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
)

// fields lists what a type becomes in JSON.
func fields(t reflect.Type, path string, optional bool) []field {
	switch {
	case t.Implements(jsonMarshaler), t.Implements(textMarshaler), t.Kind() == reflect.String:
		return []field{{path, "string", optional}}
	case t.Kind() == reflect.Bool:
		return []field{{path, "bool", optional}}
	case t.Kind() >= reflect.Int && t.Kind() <= reflect.Float64:
		return []field{{path, "number", optional}}
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return []field{{path, "string", optional}}
	case t.Kind() == reflect.Slice:
		return append([]field{{path, "list", optional}}, fields(t.Elem(), path+"[]", false)...)
	case t.Kind() == reflect.Map: // by names that are not for us to know
		return []field{{path, "object", optional}}
	case t.Kind() != reflect.Struct:
		panic("no document has a " + t.String())
	}
	var out []field
	if path != "" {
		out = append(out, field{path, "object", optional})
	}
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || !f.IsExported() || name == "-" {
			continue
		}
		if name == "" {
			panic(t.String() + "." + f.Name + " has no name in JSON")
		}
		out = append(out, fields(f.Type, strings.TrimPrefix(path+"."+name, "."), strings.Contains(options, "omit"))...)
	}
	return out
}

func TestTheDocumentsAreThoseThatScriptsKnow(t *testing.T) {
	var got bytes.Buffer
	got.WriteString("What each command prints with --json. A change here that is no addition needs another schema_version.\n")
	for _, command := range slices.Sorted(func(yield func(string) bool) {
		for c := range documents {
			if !yield(c) {
				return
			}
		}
	}) {
		fmt.Fprintf(&got, "\n%s\n", command)
		for _, f := range fields(reflect.TypeOf(documents[command]), "", false) {
			fmt.Fprintf(&got, "    %-36s %s%s\n", f.path, f.kind, map[bool]string{true: ", may be absent"}[f.optional])
		}
	}
	path := filepath.Join("testdata", "contract.txt")
	if golden.Updating() {
		if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")); diff != "" {
		t.Errorf("-known +now:\n%s", diff)
	}
}

// conforms checks one printed document against the type of its command.
func conforms(t *testing.T, command string, text []byte) {
	t.Helper()
	known := documents[command]
	if known == nil {
		t.Fatalf("%s is not known to print documents", command)
	}
	into := reflect.New(reflect.TypeOf(known))
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into.Interface()); err != nil {
		t.Errorf("%s printed %s: %v", command, text, err)
		return
	}
	var doc map[string]any
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	if doc["schema_version"] != float64(weft.SchemaVersion) {
		t.Errorf("%s: schema_version is %v", command, doc["schema_version"])
	}
	for _, f := range fields(reflect.TypeOf(known), "", false) {
		check(t, command, doc, strings.Split(f.path, "."), f)
	}
}

// check looks at a field in every element of every list on the way to it.
func check(t *testing.T, command string, at any, way []string, f field) {
	t.Helper()
	if len(way) == 0 {
		kind := "object"
		switch at.(type) {
		case string:
			kind = "string"
		case bool:
			kind = "bool"
		case float64:
			kind = "number"
		case []any:
			kind = "list"
		case nil:
			kind = "null"
		}
		if kind != f.kind {
			t.Errorf("%s: %s is a %s, not a %s", command, f.path, kind, f.kind)
		}
		return
	}
	name, list := strings.CutSuffix(way[0], "[]")
	object, ok := at.(map[string]any)
	if !ok {
		return // said elsewhere
	}
	value, ok := object[name]
	if !ok {
		if len(way) == 1 && !f.optional && !list {
			t.Errorf("%s: %s is missing", command, f.path)
		}
		return
	}
	if !list {
		check(t, command, value, way[1:], f)
		return
	}
	elements, _ := value.([]any)
	for _, e := range elements {
		check(t, command, e, way[1:], f)
	}
}

func TestEveryCommandPrintsItsDocumentAndNothingElse(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	ann, bob := newNode(t), newNode(t)
	ann.start(srv.first, "--name", "ann")
	ann.connected()
	bob.process = start(t, bob.command("", "--json", "--name", "bob"))
	bob.says(`"needs-join"`)
	line := bob.out.String()
	if strings.Count(line, "\n") != 1 {
		t.Errorf("weft node --json printed %q", line)
	}
	conforms(t, "weft node", []byte(line))

	second := weftCommand(t, "server", "--json", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--stun", "127.0.0.1:0", "--url", "https://127.0.0.1")
	p := start(t, second)
	p.says(`"token"`)
	line = p.out.String()
	var ready serverReady
	if err := json.Unmarshal([]byte(line), &ready); err != nil || strings.Count(line, "\n") != 1 || !strings.HasPrefix(ready.TCP, "127.0.0.1:") {
		t.Errorf("weft server --json printed %q: %v", line, err)
	}
	conforms(t, "weft server", []byte(line))
	p.tells = ready.Token

	names, stale, open := filepath.Join(t.TempDir(), "names"), filepath.Join(t.TempDir(), "stale"), filepath.Join(t.TempDir(), "open")
	for file, text := range map[string]string{
		names: `{"schema_version": 1, "search": ["corp.example"], "records": [{"name": "printer", "addrs": ["192.0.2.9"]}]}`,
		stale: `{"search": [], "revision": "0123456789abcdef"}`,
		open:  `{"acls": [{"action": "accept", "src": ["*"], "dst": ["*:*"]}]} // all`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	// In order: later commands need what earlier ones did.
	for _, c := range []struct {
		line, command string
		code          int
	}{
		{"version", "weft version", ExitOK},
		{"up", "", ExitFailed}, // bob has no network
		{"status", "weft status", ExitFailed},
		{"netcheck", "", ExitFailed},
		{"up " + srv.first, "weft up", ExitOK},
		{"up", "weft up", ExitOK},
		{"status", "weft status", ExitOK},
		{"ping -c 1 --timeout 20s ann", "weft ping", ExitOK},
		{"ping ann --until-direct --interval 100ms", "weft ping", ExitOK},
		{"status", "weft status", ExitOK}, // of a peer with a path
		{"explain ann", "weft explain", ExitOK},
		{"explain ann bob", "weft explain A B", ExitOK},
		{"explain ann bob tcp:22", "weft explain A B", ExitOK},
		{"explain bob ann tcp:22", "", ExitFailed},         // for ann to say
		{"explain bob tcp:22", "weft explain A B", ExitOK}, // from itself
		{"explain ann tcp:22", "", ExitFailed},
		{"explain cid bob", "", ExitFailed},
		{"paths ann", "weft paths", ExitOK},
		{"metrics", "weft metrics", ExitOK},
		{"paths cid", "", ExitFailed},
		{"paths bob", "", ExitFailed},
		{"explain cid", "", ExitFailed},
		{"explain bob", "", ExitFailed},
		{"ping cid", "", ExitFailed},
		{"ping bob", "", ExitFailed},
		{"netcheck", "weft netcheck", ExitOK},
		{"set", "weft set", ExitOK},
		{"set endpoints=203.0.113.7:41641,[2001:db8::7]:41641", "weft set", ExitOK},
		{"set endpoints=", "weft set", ExitOK},
		{"set bond=redundant bond.ann=off redundant=dscp:ef,udp:5004 congestion=cubic", "weft set", ExitOK},
		{"down", "weft down", ExitOK},
		{"down", "weft down", ExitOK},
		{"status", "weft status", ExitFailed},
		{"ping ann", "", ExitFailed},
		{"explain ann", "", ExitFailed},
		{"paths ann", "", ExitFailed},
		{"up", "weft up", ExitOK},
		{"admin status", "weft admin status", ExitOK},
		{"admin user create carol@weft.example", "weft admin user create", ExitOK},
		{"admin user create carol@weft.example", "", ExitFailed},
		{"admin user create ~", "", ExitFailed},
		{"admin user list", "weft admin user list", ExitOK},
		{"admin user rename carol@weft.example caro", "weft admin user rename", ExitOK},
		{"admin user rename nobody carol", "", ExitFailed},
		{"admin user expire caro --in 1h", "weft admin user expire", ExitOK},
		{"admin user disable caro", "weft admin user disable", ExitOK},
		{"admin user enable caro", "weft admin user enable", ExitOK},
		{"admin user link caro https://id.example 4711", "weft admin user link", ExitOK},
		{"admin user link caro https://id.example", "", ExitUsage},
		{"admin user rename caro carol@weft.example", "weft admin user rename", ExitOK},
		{"admin key create --user carol@weft.example --tag web --tag db --reusable --ephemeral --expires 1h", "weft admin key create", ExitOK},
		{"admin key create --user nobody", "", ExitFailed},
		{"admin key create --relay --tag web", "", ExitFailed},
		{"admin node create --tag web", "weft admin node create", ExitOK},
		{"admin key list", "weft admin key list", ExitOK},
		{"admin key expire 2 --in 1m", "weft admin key expire", ExitOK},
		{"admin key expire 2 --in 24h", "", ExitFailed},
		{"admin key expire 99", "", ExitFailed},
		{"admin key remove 2", "weft admin key remove", ExitOK},
		{"admin key remove 99", "", ExitFailed},
		{"admin user remove carol@weft.example", "weft admin user remove", ExitOK},
		{"admin user remove carol@weft.example", "", ExitFailed},
		{"admin node list", "weft admin node list", ExitOK},
		{"admin node tag bob web tag:db", "weft admin node tag", ExitOK},
		{"admin node tag bob", "weft admin node tag", ExitOK},
		{"admin node tag bob Web", "", ExitFailed},
		{"admin node move bob nobody", "", ExitFailed},
		{"admin node move bob", "weft admin node move", ExitOK},
		{"admin node disable bob", "weft admin node disable", ExitOK},
		{"admin node enable bob", "weft admin node enable", ExitOK},
		{"admin node approve bob", "weft admin node approve", ExitOK},
		{"admin backup " + filepath.Join(srv.dir, "..", "backup.tar"), "weft admin backup", ExitOK},
		{"admin restore " + filepath.Join(srv.dir, "..", "backup.tar"), "", ExitFailed}, // where it runs
		{"admin node create --wireguard --name phone --via ann --endpoint ann.example:41641", "weft admin node create --wireguard", ExitOK},
		{"admin node create --wireguard --via nobody", "", ExitFailed},
		{"admin node list", "weft admin node list", ExitOK}, // with one that has a gateway
		{"status", "weft status", ExitOK},
		{"ping -c 1 phone", "", ExitFailed},
		{"explain phone", "", ExitFailed},
		{"paths phone", "", ExitFailed},
		{"admin node remove ann", "", ExitFailed}, // its gateway
		{"admin node remove phone", "weft admin node remove", ExitOK},
		{"admin node rename bob bert", "weft admin node rename", ExitOK},
		{"admin node rename bert ann", "", ExitFailed},
		{"admin node rename bert Not.A.Name", "", ExitFailed},
		{"admin node rename nobody bob", "", ExitFailed},
		{"admin node expire bert --in 1h", "weft admin node expire", ExitOK},
		{"status", "weft status", ExitOK}, // with an end
		{"admin node expire bert --never", "weft admin node expire", ExitOK},
		{"admin node expire bert --never --in 1h", "", ExitFailed},
		{"admin node remove ann", "weft admin node remove", ExitOK},
		{"admin node remove ann", "", ExitFailed},
		{"admin relay list", "weft admin relay list", ExitOK},
		{"admin relay remove home", "", ExitFailed},
		{"admin relay remove none", "", ExitFailed},
		{"admin policy get", "weft admin policy get", ExitOK},
		{"admin policy check " + stale, "weft admin policy check", ExitFailed},
		{"admin policy set " + open, "weft admin policy set", ExitOK},
		{"admin policy get", "weft admin policy get", ExitOK},
		{"admin policy set " + open + "x", "", ExitFailed},
		{"admin policy explain bert bert tcp:22", "weft admin policy explain", ExitOK},
		{"admin policy explain bert nobody", "", ExitFailed},
		{"admin policy unset --revision x", "", ExitFailed},
		{"admin policy unset", "weft admin policy unset", ExitOK},
		{"admin policy unset", "", ExitFailed},
		{"admin dns get", "weft admin dns get", ExitOK},
		{"admin dns set domain=home.internal upstreams=192.0.2.53 split.corp.example=192.0.2.54:5353 record.printer=192.0.2.9", "weft admin dns set", ExitOK},
		{"admin dns get", "weft admin dns get", ExitOK},
		{"admin dns set domain=internal", "", ExitFailed},
		{"admin dns replace " + names, "weft admin dns replace", ExitOK},
		{"admin dns replace " + stale, "", ExitFailed},
		{"admin dns replace " + stale + "x", "", ExitFailed},
		{"logout", "weft logout", ExitOK},
		{"logout", "", ExitFailed},
	} {
		args := strings.Fields(c.line)
		if args[0] == "admin" {
			args = append(args, "--data", srv.dir)
		}
		r := bob.run(append(args, "--json")...)
		r.err = strings.TrimPrefix(r.err, "asking the network's relays, some seconds ...\n")
		if c.command == "" {
			fails(t, r, c.code)
			continue
		}
		if r.code != c.code || r.err != "" {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", c.line, r.code, r.out, r.err)
		}
		if c.command == "weft admin node disable" || c.command == "weft admin node enable" { // which it hears a moment later
			wait(t, "the node to hear of "+c.line, func() error {
				if s := bob.status(); (s.State == weft.Running) != (c.command == "weft admin node enable") {
					return fmt.Errorf("it is %s", s.State)
				}
				return nil
			})
		}
		docs := [][]byte{[]byte(r.out)}
		if c.command == "weft ping" {
			docs = bytes.Split(bytes.TrimSuffix([]byte(r.out), []byte("\n")), []byte("\n"))
		}
		for _, doc := range docs {
			conforms(t, c.command, doc)
		}
	}
	// Without --json the same commands are for people: no document, and never empty-handed.
	for _, line := range []string{"version", "status", "set", "admin status", "admin key list", "admin node list", "admin relay list", "admin user list", "admin dns get"} {
		args := strings.Fields(line)
		if args[0] == "admin" {
			args = append(args, "--data", srv.dir)
		}
		if r := bob.run(args...); r.out == "" || strings.HasPrefix(r.out, "{") {
			t.Errorf("%s printed %q", line, r.out)
		}
	}
}

func TestWatchedStatusIsADocumentALine(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start("")
	watch := startWeft(t, "--socket", n.socket, "status", "--json", "--watch")
	wait(t, "three documents", func() error {
		if lines := strings.Count(watch.out.String(), "\n"); lines < 3 {
			return fmt.Errorf("there are %d", lines)
		}
		return watch.running()
	})
	watch.cmd.Process.Signal(os.Interrupt)
	r := watch.end()
	if r.code != ExitOK || r.err != "" {
		t.Errorf("when interrupted: exit code %d, %q", r.code, r.err)
	}
	for line := range strings.Lines(r.out) {
		conforms(t, "weft status", []byte(line))
	}
	// For a person it is drawn anew, and it ends with 3 when the daemon does.
	watch = startWeft(t, "--socket", n.socket, "status", "-w")
	watch.says("\x1b[2J")
	n.cmd.Process.Signal(syscall.SIGTERM)
	r = watch.end()
	watch.ended = true
	if r.code != ExitNotRunning || !strings.Contains(r.err, "weft is not running here") {
		t.Errorf("when the daemon ends: exit code %d, %q", r.code, r.err)
	}
}

func TestPingSaysWhatHappenedInItsExitCode(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	ann, bob := newNode(t), newNode(t)
	ann.start(srv.first, "--name", "ann")
	bob.start(srv.first, "--name", "bob")
	ann.reaches("bob")
	r := ann.run("ping", "bob", "--until-direct", "--interval", "50ms")
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	if r.code != ExitOK || !strings.Contains(lines[len(lines)-1], "by direct ") {
		t.Errorf("until direct: %+v", r)
	}
	r = ann.run("ping", "bob.weft.internal", "-c", "3", "--interval", "10ms")
	if r.code != ExitOK || strings.Count(r.out, "reply from bob seq=") != 3 || !strings.Contains(r.out, "seq=3 by direct ") {
		t.Errorf("three: %+v", r)
	}
	for _, a := range bob.status().Self.Addrs {
		if r := ann.run("ping", "-c", "1", a.String()); r.code != ExitOK || !strings.Contains(r.out, "reply from bob") {
			t.Errorf("%s: %+v", a, r)
		}
	}
	fails(t, ann.run("ping", "192.0.2.1"), ExitFailed, "no peer", "weft status")
	endless := startWeft(t, "--socket", ann.socket, "ping", "bob", "-c", "0", "--interval", "10ms", "--json")
	wait(t, "five replies", func() error {
		if n := strings.Count(endless.out.String(), "\n"); n < 5 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	endless.cmd.Process.Signal(os.Interrupt)
	if r := endless.end(); r.code != ExitOK || r.err != "" {
		t.Errorf("interrupted, with replies: exit code %d, %q", r.code, r.err)
	}
	bob.cmd.Process.Kill()
	<-bob.done
	began := time.Now()
	r = ann.run("ping", "bob", "-c", "2", "--interval", "10ms", "--timeout", "200ms")
	if r.code != ExitFailed || r.err != "" || strings.Count(r.out, "no reply within 200ms") != 2 {
		t.Errorf("of one who is gone: %+v", r)
	}
	r = ann.run("ping", "bob", "-c", "1", "--timeout", "200ms", "--json", "--until-direct")
	var reply weft.PingReply
	if err := json.Unmarshal([]byte(r.out), &reply); err != nil || r.code != ExitFailed || reply.Error == "" || reply.Peer != "bob" {
		t.Errorf("of one who is gone, as JSON: %+v, %v", r, err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("that took %v", took)
	}
}

func TestSetChangesWhatItNamesAndAllOfItOrNothing(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	n := newNode(t)
	n.start(srv.first)
	n.connected()
	show := func() string { return n.run("set").out }
	if got := show(); got != "accept-routes=on\nadvertise-exit-node=off\nadvertise-routes=\nbond=aggregate\ncongestion=bbr\ndns=on\nendpoints=\nexit-lan=off\nexit-node=off\nmtu=auto\nport=auto\nportmap=off\nredundant=\nsite-to-site=off\nsnat=on\ntcp=auto\n" {
		t.Errorf("at first the settings are %q", got)
	}
	auto := n.status().Self.Port
	if r := n.run("set", "port=auto", "dns=on"); r.code != ExitOK { // as it is
		t.Fatal(r)
	}
	if got := n.status(); got.Self.Port != auto || strings.Contains(n.err.String(), "settings changed") {
		t.Errorf("setting what is set began anew: port %d became %d", auto, got.Self.Port)
	}
	port := freePort(t)
	if r := n.run("set", fmt.Sprintf("port=%d", port), "endpoints=203.0.113.7:41641"); r.code != ExitOK || r.out != fmt.Sprintf("accept-routes=on\nadvertise-exit-node=off\nadvertise-routes=\nbond=aggregate\ncongestion=bbr\ndns=on\nendpoints=203.0.113.7:41641\nexit-lan=off\nexit-node=off\nmtu=auto\nport=%d\nportmap=off\nredundant=\nsite-to-site=off\nsnat=on\ntcp=auto\n", port) {
		t.Fatalf("%+v", r)
	}
	n.connected()
	s := n.status()
	static := func(c weft.Candidate) bool {
		return c.Kind == weft.Static && c.Addr.String() == "203.0.113.7:41641"
	}
	if int(s.Self.Port) != port || !slices.ContainsFunc(s.Self.Candidates, static) {
		t.Errorf("after that the node is %+v", s.Self)
	}
	before := show()
	for _, bad := range [][]string{{"dns=off", "port=x"}, {"dns=off", "colour=red"}, {"dns=off", "endpoints=203.0.113.7"}, {"dns=off", "tcp="}, {"dns=off", "tcp=eth0,/etc"},
		{"dns=off", "advertise-routes=192.168.142.1/24"}, {"dns=off", "advertise-routes=0.0.0.0/0"}, {"dns=off", "snat=yes"}, {"dns=off", "exit-node=a b"}} {
		fails(t, n.run(append([]string{"set"}, bad...)...), ExitUsage)
		if after := show(); after != before {
			t.Errorf("set %v made %q of %q", bad, after, before)
		}
	}
	if r := n.run("set", "dns=off"); r.code != ExitOK || r.out != strings.Replace(before, "dns=on", "dns=off", 1) {
		t.Errorf("%+v", r)
	}
	n.connected()
	n.stop()
	n.start("")
	n.connected()
	if got := show(); got != strings.Replace(before, "dns=on", "dns=off", 1) {
		t.Errorf("after a restart the settings are %q", got)
	}
	if r := n.run("set", "port=auto", "endpoints=", "dns=on"); r.code != ExitOK {
		t.Errorf("%+v", r)
	}
	n.connected()
	if got := n.status().Self; got.Port != auto || slices.ContainsFunc(got.Candidates, static) {
		t.Errorf("back to the beginning the node is %+v; its port was %d", got, auto)
	}
	if got := n.status().Self.MTU; got != engine.MTU {
		t.Errorf("an MTU of %d", got)
	}
	if r := n.run("set", "mtu=8904"); r.code != ExitOK || !strings.Contains(r.out, "\nmtu=8904\n") {
		t.Errorf("%+v", r)
	}
	n.connected()
	if got := n.status().Self.MTU; got != 8904 {
		t.Errorf("an MTU of %d, where 8904 was set", got)
	}
}
