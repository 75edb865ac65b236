package control

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft"
	"weft/control/store"
	"weft/policy"
	"weft/wire"
)

const fleetPolicy = `{
	"tagOwners": {"tag:web": ["ann"], "tag:db": []},
	"acls": [
		{"action": "accept", "src": ["ann"], "dst": ["tag:web:443"]},
		{"action": "accept", "src": ["tag:web"], "dst": ["tag:db:5432"]},
	],
	"tests": [{"src": "ann", "accept": ["tag:web:443"], "deny": ["tag:db:5432"]}],
}`

// fleet is a world with a user and three machines.
func fleet(w *world) (laptop, web, db *machine) {
	if _, err := w.CreateUser(context.Background(), "ann"); err != nil {
		w.t.Fatal(err)
	}
	return w.join(KeyRequest{User: "ann"}, "laptop"), w.join(KeyRequest{Tags: []string{"web"}}, "web"), w.join(KeyRequest{Tags: []string{"db"}}, "db")
}

func (w *world) set(text, revision string) PolicyAnswer {
	w.t.Helper()
	a, err := w.SetPolicy(context.Background(), PolicyRequest{Text: text, Revision: revision})
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

// heard is how often a machine was told something.
func (m *machine) heard() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.maps + m.changes
}

func TestAPolicyIsInForceAtOnceAndOnlyThoseItConcernsAreTold(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		laptop, web, db := fleet(w)
		if a := w.Policy(); a.Revision != "default" || !strings.Contains(a.Text, "No policy is set") {
			t.Errorf("at first there is %+v", a)
		}
		if a := w.set(fleetPolicy, ""); policy.Refused(a.Problems) {
			t.Fatalf("%v", a.Problems)
		}
		settle()
		for m, from := range map[*machine]weft.Source{web: weft.SourceUser("ann"), db: weft.SourceTag("tag:web")} {
			rules := m.current().Rules
			if len(rules) != 1 || rules[0].From[0] != from || len(rules[0].Ports) != 4 || !strings.HasPrefix(rules[0].Why, "acls[") {
				t.Errorf("node %d lets in %+v", m.id(), rules)
			}
		}
		if rules := laptop.current().Rules; rules == nil || len(rules) != 0 {
			t.Errorf("the laptop lets in %+v", rules)
		}

		before := []int{laptop.heard(), web.heard(), db.heard()}
		w.set(strings.Replace(fleetPolicy, "tag:db:5432\"]},", "tag:db:5433\"]},", 1), "")
		settle()
		if laptop.heard() != before[0] || web.heard() != before[1] || db.heard() != before[2]+1 {
			t.Errorf("of a change for db alone %d, %d and %d were told", laptop.heard()-before[0], web.heard()-before[1], db.heard()-before[2])
		}
		for _, m := range []*machine{laptop, web, db} {
			if err := m.checkMap(); err != nil {
				t.Error(err)
			}
		}
		revision := w.Policy().Revision
		w.restart()
		for _, m := range []*machine{laptop, web, db} {
			m.connect()
			settle()
			if err := m.checkMap(); err != nil {
				t.Error(err)
			}
		}
		if w.Policy().Revision != revision || len(db.current().Rules) != 1 {
			t.Errorf("after a restart there is %+v", w.Policy())
		}
	})
}

func TestAPolicyWithProblemsOrAgainstAnotherOneChangesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		_, web, _ := fleet(w)
		first := w.set(fleetPolicy, "default")
		settle()
		before, version := web.heard(), w.now.Load().version
		for _, c := range []struct{ text, words string }{
			{`{"acls": [}`, "no JSON"},
			{strings.Replace(fleetPolicy, `["ann"], "dst"`, `["bob"], "dst"`, 1), `"bob"`},
			{strings.Replace(fleetPolicy, `"deny": ["tag:db:5432"]`, `"deny": ["tag:web:443"]`, 1), "the test fails"},
		} {
			if a := w.set(c.text, first.Revision); !policy.Refused(a.Problems) || !strings.Contains(a.Problems[0].Message, c.words) {
				t.Errorf("%v, want %q", a.Problems, c.words)
			}
		}
		_, err := w.SetPolicy(context.Background(), PolicyRequest{Text: fleetPolicy + "\n", Revision: "default"})
		if weft.CodeOf(err) != weft.CodeConflict {
			t.Errorf("against another one than is set: %v", err)
		}
		if _, err := w.CheckPolicy(context.Background(), PolicyRequest{Text: "{}"}); err != nil {
			t.Error(err)
		}
		settle()
		if a := w.Policy(); a.Text != fleetPolicy || a.Revision != first.Revision || web.heard() != before || w.now.Load().version != version {
			t.Errorf("there is %+v", a)
		}
		if a := w.set(fleetPolicy+"\n", first.Revision); policy.Refused(a.Problems) || a.Revision == first.Revision {
			t.Errorf("against the one that is set: %+v", a)
		}
	})
}

func TestAPolicyThatCannotBeStoredIsNotInForce(t *testing.T) {
	full := new(failing)
	bubble(t, func(t *testing.T, w *world) {
		_, web, _ := fleet(w)
		w.store.Fail = full.fail
		full.set(true)
		_, err := w.SetPolicy(context.Background(), PolicyRequest{Text: fleetPolicy})
		settle()
		if weft.CodeOf(err) != weft.CodeUnavailable || w.Policy().Revision != "default" || len(web.current().Rules) != 0 {
			t.Errorf("%v: %+v", err, w.Policy())
		}
		full.set(false)
		w.set(fleetPolicy, "default")
		settle()
		if len(web.current().Rules) != 1 {
			t.Errorf("web lets in %+v", web.current().Rules)
		}
	})
}

func TestAStoredPolicyThatIsNotUnderstoodLetsNothingIn(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		laptop, _, _ := fleet(w)
		if len(laptop.current().Rules) != 1 {
			t.Fatalf("by default: %+v", laptop.current().Rules)
		}
		w.stop()
		if err := w.store.Apply(context.Background(), store.Batch{store.PutDocument{Name: policyDocument, Text: `{"later": []}`}}); err != nil {
			t.Fatal(err)
		}
		w.start()
		laptop.connect()
		settle()
		if rules := laptop.current().Rules; rules == nil || len(rules) != 0 {
			t.Errorf("the laptop lets in %+v", rules)
		}
		if p := w.Status().Problems; len(p) != 1 || !strings.Contains(p[0], `"later"`) {
			t.Errorf("the administrator is told %q", p)
		}
		w.set(fleetPolicy, "")
		if p := w.Status().Problems; len(p) != 0 {
			t.Errorf("mended, the administrator is told %q", p)
		}
	})
}

func TestAUserWhomThePolicyNamesStays(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx := context.Background()
		if _, err := w.CreateUser(ctx, "ann"); err != nil {
			t.Fatal(err)
		}
		w.set(fleetPolicy, "")
		if err := w.RemoveUser(ctx, "ann"); weft.CodeOf(err) != weft.CodeDenied || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%v", err)
		}
		w.set("{}", "")
		if err := w.RemoveUser(ctx, "ann"); err != nil {
			t.Error(err)
		}
	})
}

func TestAUserMayGiveTheTagsThatThePolicySays(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		fleet(w)
		may := func(user, tag string) error {
			return w.do(context.Background(), func(t *tx) error { return t.mayTag(user, []string{tag}) })
		}
		if err := may("ann", "tag:x"); err != nil {
			t.Errorf("without a policy: %v", err)
		}
		w.set(fleetPolicy, "")
		for tag, words := range map[string]string{"tag:web": "", "tag:db": "does not own", "tag:x": "tagOwners"} {
			if err := may("ann", tag); (err == nil) != (words == "") || err != nil && !strings.Contains(err.Error(), words) {
				t.Errorf("%s: %v", tag, err)
			}
			_, _, err := w.CreateKey(context.Background(), KeyRequest{User: "ann", Tags: []string{tag}})
			if (err == nil) != (words == "") {
				t.Errorf("a key of hers with %s: %v", tag, err)
			}
			if err := may("", tag); err != nil {
				t.Errorf("the administrator gives %s: %v", tag, err)
			}
		}
	})
}

func TestNodesAreToldTheirOwnAddressesOfAPolicyAboutAll(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		laptop, web, db := fleet(w)
		for _, dst := range []string{`"100.64.0.0/10"`, `"100.64.0.0/10", "fd00::/8"`, `"fd00::/8"`} {
			w.set(`{"ipsets": {"ipset:dst": [`+dst+`]}, "acls": [{"action": "accept", "src": ["0.0.0.0/32", "ann"], "dst": ["ipset:dst:80"]}]}`, "")
			settle()
			for _, m := range []*machine{laptop, web, db} {
				var want []netip.Prefix
				for _, a := range m.current().Self.Addrs {
					if strings.Contains(dst, "100.64") && a.Is4() || strings.Contains(dst, "fd00") && a.Is6() {
						want = append(want, netip.PrefixFrom(a, a.BitLen()))
					}
				}
				rules := m.current().Rules
				if len(rules) != 1 || !slices.Equal(rules[0].To, want) || rules[0].From[0] != "0.0.0.0/32" {
					t.Errorf("with %s node %d lets in %+v, not to %v", dst, m.id(), rules, want)
				}
				if err := m.checkMap(); err != nil {
					t.Error(err)
				}
			}
		}
		// Another text with the same meaning is no news.
		before := laptop.heard()
		w.set(`{"ipsets": {"ipset:dst": ["fd00::/8"]}, "acls": [{"action": "accept", "src": ["0.0.0.0/32", "ann"], "dst": ["ipset:dst:80"]}], /* the same */}`, "")
		settle()
		if n := laptop.heard() - before; n != 0 {
			t.Errorf("of what changes no rule a node was told %d times", n)
		}
	})
}

func TestThePolicyApprovesRoutesOfWhomItNames(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		laptop, web, db := fleet(w)
		w.set(`{"tagOwners": {"tag:web": [], "tag:db": []}, "autoApprovers": {"routes": {"192.168.0.0/16": ["tag:web"]}, "exitNode": ["tag:db"]},
			"acls": [{"action": "accept", "src": ["ann"], "dst": ["192.168.7.0/24:80"]}]}`, "")
		offer := wire.Update{Routes: nets("192.168.7.0/24", "10.0.0.0/8", "0.0.0.0/0")}
		web.update(offer)
		db.update(offer)
		settle()
		for m, want := range map[*machine]string{web: "192.168.7.0/24", db: "0.0.0.0/0"} {
			if got := laptop.peer(t, m).Routes; len(got) != 1 || got[0] != nets(want)[0] {
				t.Errorf("behind node %d are %v", m.id(), got)
			}
		}
		if rules := web.current().Rules; len(rules) != 1 || len(rules[0].To) != 1 || rules[0].To[0] != nets("192.168.7.0/24")[0] {
			t.Errorf("the router lets in %+v", rules)
		}
		for _, m := range []*machine{laptop, web, db} {
			if err := m.checkMap(); err != nil {
				t.Error(err)
			}
		}
		w.set("{}", "") // and what is approved stays so
		settle()
		if got := laptop.peer(t, web).Routes; len(got) != 1 {
			t.Errorf("behind web are %v", got)
		}
	})
}

func TestTheServerExplainsItsPolicy(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		_, web, _ := fleet(w)
		phone := w.join(KeyRequest{User: "ann"}, "phone")
		explain := func(from, to, port string) ExplainAnswer {
			t.Helper()
			a, err := w.ExplainPolicy(context.Background(), ExplainRequest{From: from, To: to, Port: port})
			if err != nil {
				t.Errorf("%s %s %s: %v", from, to, port, err)
			}
			return a
		}
		if a := explain("phone", "laptop", "tcp:22"); !a.Allowed || !strings.Contains(a.Message, policy.DefaultWhy) {
			t.Errorf("%+v", a)
		}
		if a := explain("laptop", "web", ""); a.Allowed || !strings.Contains(a.Message, "no policy is set") {
			t.Errorf("%+v", a)
		}
		w.set(fleetPolicy, "")
		for _, c := range []struct {
			from, to, port string
			allowed        bool
			words          string
		}{
			{"laptop", "web", "tcp:443", true, "laptop (ann) may reach web (tag:web) by tcp:443: acls[0], line 4"},
			{"laptop", "web", "icmp", true, "acls[0]"},
			{"laptop", "web", "tcp:22", false, "no rule"},
			{"laptop", "web", "", true, "may reach web"},
			{"laptop", "web." + weft.Domain, "tcp:443", true, "acls[0]"},
			{itoa(uint32(phone.id())), "web", "udp:443", true, "acls[0]"},
			{"laptop", web.current().Self.Addrs[1].String(), "tcp:443", true, "acls[0]"},
			{"laptop", "db", "", false, "no rule"},
			{"web", "db", "tcp:5432", true, "acls[1]"},
			{"phone", "laptop", "tcp:22", false, "no rule"},
			{"web", "web", "tcp:1", true, "the same machine"},
		} {
			if a := explain(c.from, c.to, c.port); a.Allowed != c.allowed || !strings.Contains(a.Message, c.words) {
				t.Errorf("%s %s %s: %+v", c.from, c.to, c.port, a)
			}
		}
		for _, c := range [][3]string{{"laptop", "nobody", ""}, {"laptop", "192.0.2.1", ""}, {"laptop", "web", "tcp"}, {"laptop", "web", "*:22"}, {"laptop", "web", "tcp:1-2"}, {"laptop", "web", "http"}} {
			if _, err := w.ExplainPolicy(context.Background(), ExplainRequest{From: c[0], To: c[1], Port: c[2]}); err == nil {
				t.Errorf("%v is explained", c)
			}
		}
	})
}

func TestAPolicyIsUnsetAndEverybodyIsTold(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx := context.Background()
		laptop, web, _ := fleet(w)
		phone := w.join(KeyRequest{User: "ann"}, "phone")
		if _, err := w.UnsetPolicy(ctx, PolicyRequest{}); err == nil {
			t.Error("a policy that is not there was unset")
		}
		look := func(when string, without bool) {
			t.Helper()
			settle()
			for _, m := range []*machine{laptop, web, phone} {
				if got := m.current().NoPolicy; got != without {
					t.Errorf("%s node %d hears that there is no policy: %v", when, m.id(), got)
				}
				if err := m.checkMap(); err != nil {
					t.Error(err)
				}
			}
		}
		look("at first", true)
		first := w.set(fleetPolicy, "").Revision
		look("with a policy", false)
		before := phone.heard()
		w.set(fleetPolicy+" ", "")
		settle()
		if phone.heard() != before {
			t.Error("the phone is told of a policy that says the same")
		}
		if _, err := w.UnsetPolicy(ctx, PolicyRequest{Revision: first}); err == nil {
			t.Error("another policy than was meant was unset")
		}
		if a, err := w.UnsetPolicy(ctx, PolicyRequest{Revision: w.Policy().Revision}); err != nil || a.Revision != DefaultPolicy {
			t.Errorf("unset: %+v, %v", a, err)
		}
		look("without one", true)
		if rules := phone.current().Rules; len(rules) != 1 || rules[0].Why != policy.DefaultWhy {
			t.Errorf("the phone lets in %+v", rules)
		}
		w.restart()
		for _, m := range []*machine{laptop, web, phone} {
			m.connect()
		}
		look("after a restart", true)
		if a := w.Policy(); a.Revision != DefaultPolicy || !strings.Contains(a.Text, "No policy is set") {
			t.Errorf("after a restart there is %+v", a)
		}
	})
}

func TestTheServerExplainsWhoCarriesAnAddress(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx := context.Background()
		a, b := w.join(KeyRequest{}, "a"), w.join(KeyRequest{}, "b")
		w.join(KeyRequest{}, "laptop")
		expect := func(to string, carrier weft.Carrier, allowed bool, words string) {
			t.Helper()
			settle()
			got, err := w.ExplainPolicy(ctx, ExplainRequest{From: "laptop", To: to, Port: "tcp:80"})
			if err != nil {
				t.Fatalf("%s: %v", to, err)
			}
			got.Carrier.Note = "" // it is in the message
			if diff := cmp.Diff(carrier, got.Carrier, same); diff != "" || got.Allowed != allowed || !strings.Contains(got.Message, words) {
				t.Errorf("%s: %v %s\n%s", to, got.Allowed, got.Message, diff)
			}
		}
		lan, wide := nets("192.168.142.0/24")[0], nets("192.168.0.0/16")[0]
		a.update(wire.Update{Routes: append(nets("192.168.142.0/24"), weft.ExitRoutes...)})
		expect("192.168.142.9", weft.Carrier{Route: lan, By: "a"}, false, "weft admin route approve a 192.168.142.0/24")
		expect("9.9.9.9", weft.Carrier{Route: weft.ExitRoutes[0], By: "a"}, false, "weft admin route approve a exit")
		if _, err := w.ChangeRoutes(ctx, "b", RoutesRequest{Approve: nets("192.168.0.0/16")}); err != nil {
			t.Fatal(err)
		}
		expect("192.168.7.7", weft.Carrier{Route: wide, By: "b", Approved: true}, false, "advertise-routes=192.168.0.0/16")
		b.update(wire.Update{Routes: nets("192.168.0.0/16", "192.168.142.0/24")})
		expect("192.168.142.9", weft.Carrier{Route: wide, By: "b", Approved: true, InUse: true}, true, "through b, which speaks for 192.168.0.0/16")
		for _, n := range []string{"a", "b"} {
			if _, err := w.ChangeRoutes(ctx, n, RoutesRequest{Approve: append(nets("192.168.142.0/24"), weft.ExitRoutes...)}); err != nil {
				t.Fatal(err)
			}
		}
		expect("192.168.142.9", weft.Carrier{Route: lan, By: "a", Approved: true, InUse: true, Beside: []string{"b"}}, true, "through a, which speaks for 192.168.142.0/24")
		expect("9.9.9.9", weft.Carrier{Route: weft.ExitRoutes[0], By: "a", Approved: true, InUse: true}, true, "exit-node=a")
		a.hangUp()
		time.Sleep(OfflineAfter)
		expect("192.168.142.9", weft.Carrier{Route: lan, By: "b", Approved: true, InUse: true}, true, "through b")
		expect("9.9.9.9", weft.Carrier{Route: weft.ExitRoutes[0], By: "a", Approved: true}, false, "is offline")
	})
}

func TestTheAdminAPICarriesPolicies(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		fleet(w)
		h := w.AdminHandler()
		ask := func(method, path string, q any) (int, string) {
			b, err := json.Marshal(q)
			if err != nil {
				t.Fatal(err)
			}
			r := httptest.NewRequest(method, "http://"+adminHost+"/v1/"+path, strings.NewReader(string(b)))
			r.Header.Set("Content-Type", "application/json")
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, r)
			return rec.Code, rec.Body.String()
		}
		for _, c := range []struct {
			method, path string
			q            any
			code         int
			words        string
		}{
			{"GET", "policy", nil, 200, `"revision":"default"`},
			{"POST", "policy/check", PolicyRequest{Text: "{}"}, 200, `"problems":[]`},
			{"POST", "policy", PolicyRequest{Text: `{"x": 1}`}, 200, `"column":2`},
			{"POST", "policy", PolicyRequest{Text: fleetPolicy, Revision: "default"}, 200, `"problems":[]`},
			{"POST", "policy", PolicyRequest{Text: fleetPolicy, Revision: "default"}, 409, `"conflict"`},
			{"POST", "policy/unset", PolicyRequest{Revision: "x"}, 409, `"conflict"`},
			{"POST", "policy/explain", ExplainRequest{From: "laptop", To: "web", Port: "tcp:443"}, 200, `"allowed":true`},
			{"POST", "policy/explain", ExplainRequest{From: "laptop", To: "none"}, 404, "none"},
			{"POST", "policy/unset", PolicyRequest{}, 200, `"revision":"default"`},
			{"POST", "policy", PolicyRequest{Text: strings.Repeat("\x01", 2*policy.MaxText)}, 400, "longer than"},
		} {
			if code, text := ask(c.method, c.path, c.q); code != c.code || !strings.Contains(text, c.words) {
				t.Errorf("%s %s: %d %.300s", c.method, c.path, code, text)
			}
		}
	})
}
