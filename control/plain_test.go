package control

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weft"
	"weft/key"
	"weft/wire"
)

func phone() key.NodePublic { return key.NewPrivate[key.Node]().Public() }

// gatewayAt makes a machine say that it is reached there.
func gatewayAt(m *machine, kind weft.CandidateKind, addrs ...string) {
	u := wire.Update{}
	for _, a := range addrs {
		u.Candidates = append(u.Candidates, weft.Candidate{Addr: netip.MustParseAddrPort(a), Kind: kind})
	}
	m.update(u)
	settle()
}

func TestAPhoneIsInEverybodysMapByWayOfItsGateway(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		gw, other := w.join(KeyRequest{}, "gw"), w.join(KeyRequest{}, "other")
		gatewayAt(gw, weft.Host, "198.51.100.1:41641")
		k := phone()
		a, err := w.CreatePlain(ctx, PlainRequest{Key: k, Name: "Ana's phone", Via: "gw", Tags: []string{"mobile"}})
		if err != nil {
			t.Fatal(err)
		}
		settle()
		if a.Gateway.Endpoint != "198.51.100.1:41641" || a.Gateway.Key != gw.hello.NodeKey || a.Gateway.Note != "" || a.Domain != weft.Domain ||
			len(a.Ranges) != 2 || !a.Ranges[0].Contains(a.Service) || a.Node.Machine != "" {
			t.Errorf("the answer is %+v", a)
		}
		for _, m := range []*machine{gw, other} {
			n, ok := m.current().Peer(a.Node.ID)
			if !ok || n.Gateway != gw.id() || n.Key != k || n.Name != "ana-s-phone" || n.Online || len(n.Addrs) != 2 || !n.Plain() {
				t.Errorf("%d has it as %+v, %v", m.id(), n, ok)
			}
		}
		w.restart() // it is kept
		gw.connect()
		settle()
		if n, _ := gw.current().Peer(a.Node.ID); n.Gateway != gw.id() || n.Key != k {
			t.Errorf("after a restart it is %+v", n)
		}
		if err := w.RemoveNode(ctx, a.Node.Name); err != nil {
			t.Error(err)
		}
		settle()
		if _, ok := gw.current().Peer(a.Node.ID); ok {
			t.Error("it was removed, and is in the map of its gateway")
		}
	})
}

func TestAPhoneIsOnlineWhileItsGatewayHearsIt(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		gw, other := w.join(KeyRequest{}, "gw"), w.join(KeyRequest{}, "other")
		a, err := w.CreatePlain(t.Context(), PlainRequest{Key: phone(), Name: "phone", Via: "gw", Endpoint: "gw.example:1"})
		if err != nil {
			t.Fatal(err)
		}
		online := func() bool {
			settle()
			n, _ := other.current().Peer(a.Node.ID)
			return n.Online
		}
		other.update(wire.Update{Heard: []weft.NodeID{a.Node.ID}})
		if online() {
			t.Error("online, says a node that is not its gateway")
		}
		gw.update(wire.Update{Heard: []weft.NodeID{a.Node.ID, gw.id(), other.id(), 77}})
		if !online() {
			t.Error("its gateway hears it, and it is not online")
		}
		gw.update(wire.Update{})
		if online() {
			t.Error("its gateway does not hear it any more, and it is online")
		}
		if n, _ := other.current().Peer(a.Node.ID); n.LastSeen.IsZero() {
			t.Error("nobody knows when it was last seen")
		}
		gw.update(wire.Update{Heard: []weft.NodeID{a.Node.ID}})
		online()
		gw.hangUp()
		time.Sleep(2 * OfflineAfter)
		if online() {
			t.Error("its gateway is gone, and it is online")
		}
	})
}

func TestAGatewayIsNotRemovedFromUnderItsPhones(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		gw := w.join(KeyRequest{}, "gw")
		a, err := w.CreatePlain(t.Context(), PlainRequest{Key: phone(), Name: "phone", Via: "gw", Endpoint: "gw.example:1"})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.RemoveNode(t.Context(), "gw"); weft.CodeOf(err) != weft.CodeDenied || !strings.Contains(err.Error(), "phone") {
			t.Errorf("removing it: %v", err)
		}
		_ = gw.say(wire.NodeMessage{Logout: &wire.Logout{}}) // nobody can keep it from leaving
		settle()
		if n := w.Nodes(); len(n) != 0 || len(w.index.behind) != 0 || len(w.index.keys) != 0 {
			t.Errorf("left are %+v, %v", n, w.index.behind)
		}
		w.restart()
		if n := w.Nodes(); len(n) != 0 {
			t.Errorf("node %d is back: %+v", a.Node.ID, n)
		}
	})
}

func TestAPhonesMembershipEndsAndCanBeProlonged(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		gw := w.join(KeyRequest{}, "gw")
		a, err := w.CreatePlain(t.Context(), PlainRequest{Key: phone(), Name: "phone", Via: "gw", Endpoint: "gw.example:1", Lifetime: 20 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		has := func() bool { settle(); _, ok := gw.current().Peer(a.Node.ID); return ok }
		if !has() {
			t.Fatal("it is not in the map")
		}
		time.Sleep(20 * time.Second)
		if has() {
			t.Error("its time is over, and its gateway still has it")
		}
		if _, err := w.ExpireNode(t.Context(), "phone", ExpireRequest{Never: true}); err != nil || !has() {
			t.Errorf("prolonged, and its gateway does not have it: %v", err)
		}
	})
}

func TestWhyAPhoneIsNotTakenIn(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		gw := w.join(KeyRequest{}, "gw")
		brief := w.join(KeyRequest{Ephemeral: true}, "brief")
		over := w.join(KeyRequest{}, "over")
		_, _ = w.ExpireNode(t.Context(), "over", ExpireRequest{})
		good := PlainRequest{Key: phone(), Name: "phone", Via: "gw", Endpoint: "gw.example:1"}
		first, err := w.CreatePlain(t.Context(), good)
		if err != nil {
			t.Fatal(err)
		}
		for what, c := range map[string]struct {
			change func(*PlainRequest)
			says   string
		}{
			"no key":             {func(r *PlainRequest) { r.Key = key.NodePublic{} }, "key"},
			"a key of low order": {func(r *PlainRequest) { r.Key, _ = key.PublicFrom[key.Node]([]byte{31: 0, 0: 1}) }, "keeps a secret"},
			"its own key again":  {func(r *PlainRequest) { r.Key = good.Key }, "already"},
			"a node's key":       {func(r *PlainRequest) { r.Key = gw.hello.NodeKey }, "already"},
			"an unknown gateway": {func(r *PlainRequest) { r.Via = "nobody" }, "there is no node"},
			"a phone's phone":    {func(r *PlainRequest) { r.Via = "phone" }, "nobody's gateway"},
			"an ephemeral one":   {func(r *PlainRequest) { r.Via = itoa(brief.id()) }, "ephemeral"},
			"one that has ended": {func(r *PlainRequest) { r.Via = itoa(over.id()) }, "ended"},
			"nowhere":            {func(r *PlainRequest) { r.Endpoint = "" }, "--endpoint"},
			"nobody anywhere":    {func(r *PlainRequest) { r.Endpoint, r.Via = "", "" }, "--via"},
			"no port":            {func(r *PlainRequest) { r.Endpoint = "gw.example" }, "HOST:PORT"},
			"port zero":          {func(r *PlainRequest) { r.Endpoint = "gw.example:0" }, "HOST:PORT"},
			"a line more":        {func(r *PlainRequest) { r.Endpoint = "gw.example\nPostUp = rm:1" }, "HOST:PORT"},
			"a line break":       {func(r *PlainRequest) { r.Endpoint = "gw\nexample:1" }, "HOST:PORT"},
			"no host":            {func(r *PlainRequest) { r.Endpoint = ":1" }, "HOST:PORT"},
			"nobody's":           {func(r *PlainRequest) { r.User = "nobody" }, "there is no user"},
			"a bad tag":          {func(r *PlainRequest) { r.Tags = []string{"A b"} }, "cannot be a tag"},
			"the past":           {func(r *PlainRequest) { r.Lifetime = -1 }, "cannot end"},
		} {
			r := good
			r.Key = phone()
			c.change(&r)
			if a, err := w.CreatePlain(t.Context(), r); err == nil || !strings.Contains(err.Error(), c.says) || weft.CodeOf(err) == "" {
				t.Errorf("%s: %v, %+v; want %q", what, err, a, c.says)
			}
		}
		if n := w.Nodes(); len(n) != 4 || w.now.Load().net.NextNode != first.Node.ID+1 {
			t.Errorf("%d nodes, and the next is %d", len(n), w.now.Load().net.NextNode)
		}
		// Whoever has a phone's private key cannot be that member on a stream: neither as its machine, nor as its node.
		m := w.machine(w.invite(KeyRequest{}), "m")
		m.hello.NodeKey = good.Key
		refusedWith(t, m, weft.CodeDenied, "another machine's")
		raw := good.Key.Bytes()
		m = w.machine(nil, "m")
		m.machine, _ = key.PublicFrom[key.Machine](raw[:])
		refusedWith(t, m, weft.CodeRemoved, "does not know this machine")
		m.machine = key.MachinePublic{}
		refusedWith(t, m, weft.CodeRemoved, "does not know this machine")
	})
}

func TestTheGatewayThatIsBestReachedIsTaken(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		nat, public, late := w.join(KeyRequest{}, "nat"), w.join(KeyRequest{}, "public"), w.join(KeyRequest{}, "late")
		ask := func() GatewayInfo {
			t.Helper()
			a, err := w.CreatePlain(t.Context(), PlainRequest{Key: phone()})
			if err != nil {
				t.Fatal(err)
			}
			return a.Gateway
		}
		gatewayAt(nat, weft.Host, "192.168.1.5:41641", "[fd00::5]:41641")
		if g := ask(); g.Name != "nat" || g.Endpoint != "192.168.1.5:41641" || !strings.Contains(g.Note, "own network") {
			t.Errorf("one in a home: %+v", g)
		}
		gatewayAt(nat, weft.ServerReflexive, "198.51.100.9:30000")
		if g := ask(); g.Endpoint != "198.51.100.9:30000" || !strings.Contains(g.Note, "behind a NAT") {
			t.Errorf("one that STUN has seen: %+v", g)
		}
		gatewayAt(nat, weft.PortMapped, "198.51.100.9:41641")
		if g := ask(); g.Endpoint != "198.51.100.9:41641" || g.Note != "" {
			t.Errorf("one with a mapped port: %+v", g)
		}
		gatewayAt(public, weft.Host, "[2001:db8::1]:41641", "198.51.100.1:41641", "100.64.0.9:41641")
		if g := ask(); g.Name != "public" || g.Endpoint != "198.51.100.1:41641" || g.Note != "" {
			t.Errorf("one with an address of its own: %+v", g)
		}
		gatewayAt(late, weft.Static, "203.0.113.1:443")
		if g := ask(); g.Name != "late" || g.Endpoint != "203.0.113.1:443" {
			t.Errorf("one that somebody wrote down: %+v", g)
		}
		late.hangUp()
		time.Sleep(2 * OfflineAfter)
		if g := ask(); g.Name != "public" {
			t.Errorf("one that is not there: %+v", g)
		}
	})
}

func TestThePhonesPrivateKeyHasNoPlaceInARequest(t *testing.T) {
	_, c, _ := adminWorld(t)
	_, err := call[PlainAnswer](t.Context(), c, "POST", "nodes", map[string]any{"private_key": "x"})
	if weft.CodeOf(err) != weft.CodeBadRequest {
		t.Errorf("it was taken: %v", err)
	}
	if _, err := c.CreatePlain(t.Context(), PlainRequest{Key: phone()}); weft.CodeOf(err) != weft.CodeUnavailable {
		t.Errorf("no node is there to be the gateway: %v", err)
	}
	b, _ := json.Marshal(PlainAnswer{})
	if strings.Contains(strings.ToLower(string(b)), "private") {
		t.Errorf("an answer has %s", b)
	}
}
