package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weft"
	"weft/key"
)

// nodeMessages is one of each thing that a node or a relay says, with every field set.
func nodeMessages() map[string]NodeMessage {
	return map[string]NodeMessage{
		"hello": {Hello: &Hello{
			Version: "1.2.3", OS: "linux", Secret: []byte("twenty secret bytes!"), NodeKey: nodeA.Public(), Name: "web",
			Epoch: "e1", MapVersion: 41,
		}},
		"hello-relay": {Hello: &Hello{
			Version: "1.2.3", OS: "linux", Secret: []byte("twenty secret bytes!"),
			Relay: &HelloRelay{
				Key: relayR.Public(), Name: "munich", URL: "https://relay.example",
				UDP: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.3:3478")}, UDPPort: 3478, Fingerprint: make([]byte, 32),
			},
		}},
		"update": {Update: &Update{
			Candidates: []weft.Candidate{
				{Addr: netip.MustParseAddrPort("10.0.0.5:41641"), Kind: weft.Host, Link: 2},
				{Addr: netip.MustParseAddrPort("[2001:db8::5]:41641"), Kind: weft.Host, Link: 2},
				{Addr: netip.MustParseAddrPort("192.0.2.5:30001"), Kind: weft.ServerReflexive},
			},
			HomeRelay: 1, NAT: "endpoint-independent", Heard: []weft.NodeID{8, 4294967295},
		}},
		"logout": {Logout: &Logout{}},
		"ping":   {Ping: &Beat{N: 7}},
	}
}

// serverMessages is one of each thing that the server says.
func serverMessages() map[string]ServerMessage {
	node := func(id weft.NodeID, k key.NodePublic, name string) weft.Node {
		return weft.Node{
			ID: id, Name: name, Key: k, User: "anna", Tags: []string{"tag:web"}, HomeRelay: 1, NAT: "endpoint-independent",
			Addrs: []netip.Addr{
				netip.AddrFrom4([4]byte{100, 64, 0, byte(id)}),
				netip.AddrFrom16([16]byte{0: 0xFD, 1: 0x12, 15: byte(id)}),
			},
			Candidates: []weft.Candidate{{Addr: netip.MustParseAddrPort("192.0.2.5:30001"), Kind: weft.ServerReflexive}},
			LastSeen:   time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC), Ephemeral: true,
			Expires: time.Date(2027, 2, 3, 4, 5, 6, 0, time.UTC),
		}
	}
	relay := weft.Relay{
		ID: 1, Name: "munich", Key: relayR.Public(), URL: "https://relay.example", UDPPort: 3478,
		UDP: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.3:3478")}, Fingerprint: make([]byte, 32),
	}
	self := node(7, nodeA.Public(), "web")
	plain := weft.Node{ID: 10, Name: "phone", Key: nodeB.Public(), Addrs: []netip.Addr{netip.AddrFrom4([4]byte{100, 64, 0, 9})}, Gateway: 7}
	return map[string]ServerMessage{
		"welcome": {Welcome: &Welcome{
			ServerVersion: "1.2.3", Epoch: "e1", Node: 7, Relay: 1, Signing: signing.Public(), Network: "home",
		}},
		"map": {Map: &weft.NetworkMap{
			Version: 42, Self: self, Peers: []weft.Node{node(8, nodeB.Public(), "db")}, Relays: []weft.Relay{relay},
			Domain:  weft.Domain,
			Ranges:  []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fd12::/48")},
			Service: netip.MustParseAddr("100.64.0.1"), Ticket: make([]byte, TicketSize),
		}},
		"change": {Change: &weft.Change{
			Version: 43, Self: &self, Upsert: []weft.Node{node(9, nodeB.Public(), "ci"), plain}, Remove: []weft.NodeID{8},
			Relays: []weft.Relay{relay}, Ticket: make([]byte, TicketSize),
		}},
		"revoked": {Revoked: &Revoked{Nodes: []weft.NodeID{3, 4}}},
		"error":   {Error: &weft.Error{Code: weft.CodeSpentToken, Message: "the join key was used by another machine: make a new one"}},
		"pong":    {Pong: &Beat{N: 7}},
		"newer":   {},
	}
}

func TestWhatIsSaidOnTheControlStreamComesBack(t *testing.T) {
	for name, want := range nodeMessages() {
		got, err := ParseNodeMessage(must(json.Marshal(want)))
		if diff := cmp.Diff(want, got, sameValues); err != nil || diff != "" {
			t.Errorf("%s: %v: %s", name, err, diff)
		}
	}
	for name, want := range serverMessages() {
		got, err := ParseServerMessage(must(json.Marshal(want)))
		if diff := cmp.Diff(want, got, sameValues); err != nil || diff != "" {
			t.Errorf("%s: %v: %s", name, err, diff)
		}
	}
}

func TestANodeSaysOneThingAtATime(t *testing.T) {
	for text, ok := range map[string]bool{
		`{"ping":{"n":1}}`: true, `{"logout":{}}`: true, `{"ping":{"n":1},"of a newer version":[1,2]}`: true,
		`{"ping":{"n":1,"more":true}}`: true, `{"ping":{"n":1},"logout":null}`: true,
		`{}`: false, `{"of a newer version":{}}`: false, `{"ping":null}`: false, `{"ping":{"n":1},"logout":{}}`: false,
		``: false, `null`: false, `[]`: false, `7`: false, `{`: false, `{"ping":{"n":1}}{"ping":{"n":1}}`: false,
		`{"ping":{"n":-1}}`: false, `{"ping":{"n":"1"}}`: false, "\x00\x01": false,
		strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20000): false,
	} {
		if _, err := ParseNodeMessage([]byte(text)); (err == nil) != ok || err != nil && !errors.Is(err, ErrFrame) {
			t.Errorf("%.60s: %v", text, err)
		}
	}
	for text, ok := range map[string]bool{
		`{}`: true, `{"of a newer version":{}}`: true, `{"pong":{"n":1}}`: true,
		`{"pong":{"n":1},"revoked":{"nodes":[]}}`: false, ``: false, `[]`: false, `{"map":7}`: false,
	} {
		if _, err := ParseServerMessage([]byte(text)); (err == nil) != ok || err != nil && !errors.Is(err, ErrFrame) {
			t.Errorf("%.60s: %v", text, err)
		}
	}
}

func TestADocumentThatIsTooLongIsNotRead(t *testing.T) {
	pad := func(n int) []byte { return []byte(`{"ping":{"n":1}` + strings.Repeat(" ", n-16) + `}`) }
	if _, err := ParseNodeMessage(pad(MaxNodeMessage)); err != nil {
		t.Errorf("as long as may be: %v", err)
	}
	if _, err := ParseNodeMessage(pad(MaxNodeMessage + 1)); !errors.Is(err, ErrFrame) {
		t.Errorf("one byte longer: %v", err)
	}
	if _, err := ParseServerMessage(make([]byte, MaxServerMessage+1)); !errors.Is(err, ErrFrame) {
		t.Errorf("one byte longer: %v", err)
	}
}

func TestWhatANodeSaysIsFitToBeShownToOthers(t *testing.T) {
	long, escape := strings.Repeat("x", maxWord+1), "\x1b[2J"
	for _, text := range []string{long, escape, "a\nb", "\u009b2J", "\x00"} {
		for name, m := range map[string]NodeMessage{
			"version": {Hello: &Hello{Version: text}}, "os": {Hello: &Hello{OS: text}}, "name": {Hello: &Hello{Name: text}},
			"epoch": {Hello: &Hello{Epoch: text}}, "nat": {Update: &Update{NAT: text}},
			"relay name": {Hello: &Hello{Relay: &HelloRelay{Name: text}}}, "relay url": {Hello: &Hello{Relay: &HelloRelay{URL: text}}},
		} {
			if _, err := ParseNodeMessage(must(json.Marshal(m))); !errors.Is(err, ErrFrame) {
				t.Errorf("%s of %.10q: %v", name, text, err)
			}
		}
	}
	for name, m := range map[string]NodeMessage{
		"fingerprint of 31 bytes": {Hello: &Hello{Relay: &HelloRelay{Fingerprint: make([]byte, 31)}}},
		"relay at 33 addresses":   {Hello: &Hello{Relay: &HelloRelay{UDP: make([]netip.AddrPort, MaxCandidates+1)}}},
		"node at 33 candidates":   {Update: &Update{Candidates: make([]weft.Candidate, MaxCandidates+1)}},
		"gateway of 1,025":        {Update: &Update{Heard: make([]weft.NodeID, MaxHeard+1)}},
	} {
		if _, err := ParseNodeMessage(must(json.Marshal(m))); !errors.Is(err, ErrFrame) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ok := NodeMessage{Hello: &Hello{Version: strings.Repeat("x", maxWord), OS: "линукс", Name: "Anna's Mac"}}
	if _, err := ParseNodeMessage(must(json.Marshal(ok))); err != nil {
		t.Error(err)
	}
}

// TestNoNodeCanSpoilTheMapOfOthers is about a candidate that one node sends, or a newer version has, and that
// would reach every other node inside its map.
func TestNoNodeCanSpoilTheMapOfOthers(t *testing.T) {
	good := `{"addr":"192.0.2.1:41641","kind":"host"}`
	bad := []string{
		`{}`, `{"addr":"192.0.2.1:41641"}`, `{"addr":"192.0.2.1:41641","kind":"of a newer version"}`,
		`{"addr":"192.0.2.1:41641","kind":"?"}`, `{"addr":"","kind":"host"}`, `{"addr":"192.0.2.1:0","kind":"host"}`,
		`{"addr":"0.0.0.0:41641","kind":"host"}`, `{"addr":"[::ffff:0.0.0.0]:41641","kind":"host"}`,
		`{"addr":"224.0.0.1:41641","kind":"host"}`,
	}
	list := "[" + strings.Join(append(bad, good), ",") + "]"
	want := []weft.Candidate{{Addr: netip.MustParseAddrPort("192.0.2.1:41641"), Kind: weft.Host}}

	m, err := ParseNodeMessage([]byte(`{"update":{"candidates":` + list + `}}`))
	if err != nil || !cmp.Equal(want, m.Update.Candidates, sameValues) {
		t.Errorf("%+v, %v", m.Update, err)
	}
	node := `{"id":7,"name":"n","candidates":` + list + `}`
	s, err := ParseServerMessage([]byte(`{"map":{"self":` + node + `,"peers":[` + node + `,` + node + `]}}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range append(s.Map.Peers, s.Map.Self) {
		if !cmp.Equal(want, n.Candidates, sameValues) {
			t.Errorf("%+v", n.Candidates)
		}
	}
	s, err = ParseServerMessage([]byte(`{"change":{"self":` + node + `,"upsert":[` + node + `]}}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range append(s.Change.Upsert, *s.Change.Self) {
		if !cmp.Equal(want, n.Candidates, sameValues) {
			t.Errorf("%+v", n.Candidates)
		}
	}
	// What a NAT mapped is compared unmapped, and a zone is of the machine that wrote it.
	m, err = ParseNodeMessage([]byte(`{"update":{"candidates":[{"addr":"[::ffff:192.0.2.1]:41641","kind":"host"},
		{"addr":"[fe80::1%eth0]:41641","kind":"host"}]}}`))
	want = append(want, weft.Candidate{Addr: netip.MustParseAddrPort("[fe80::1]:41641"), Kind: weft.Host})
	if err != nil || !cmp.Equal(want, m.Update.Candidates, sameValues) {
		t.Errorf("%+v, %v", m.Update, err)
	}
	// A word that is none at all is still refused, and only for who said it.
	if _, err := ParseNodeMessage([]byte(`{"update":{"candidates":[{"addr":"localhost:1","kind":"host"}]}}`)); err == nil {
		t.Error("a host name is an address")
	}
}

func TestAKeyInTheWrongPlaceIsRefused(t *testing.T) {
	text := fmt.Sprintf(`{"hello":{"version":"1","os":"linux","node_key":%q}}`, relayR.Public())
	if _, err := ParseNodeMessage([]byte(text)); err == nil || !strings.Contains(err.Error(), "nodekey") {
		t.Errorf("a relay's key as a node's: %v", err)
	}
}

func TestAMapOf10000NodesFits(t *testing.T) {
	m := weft.NetworkMap{Domain: weft.Domain}
	sample := serverMessages()["map"].Map.Peers[0]
	sample.Candidates = repeat(weft.Candidate{
		Addr: netip.MustParseAddrPort("[2001:db8:1111:2222:3333:4444:5555:6666]:41641"), Kind: weft.ServerReflexive, Link: 3,
	}, 12)
	for i := range 10000 {
		sample.ID = weft.NodeID(i + 1)
		m.Peers = append(m.Peers, sample)
	}
	b := must(json.Marshal(ServerMessage{Map: &m}))
	if len(b) > MaxServerMessage/2 {
		t.Errorf("it has %d bytes, and there is room for %d", len(b), MaxServerMessage)
	}
	t.Logf("%d bytes", len(b))
}

func TestOneHelloAndUpdateAtTheirLongestFit(t *testing.T) {
	word := strings.Repeat("x", maxWord)
	candidate := weft.Candidate{
		Addr: netip.MustParseAddrPort("[2001:db8:1111:2222:3333:4444:5555:6666]:41641"), Kind: weft.ServerReflexive, Link: 65535,
	}
	for name, m := range map[string]NodeMessage{
		"hello": {Hello: &Hello{
			Version: word, OS: word, Name: word, Epoch: word, Secret: make([]byte, TokenSecretSize), NodeKey: nodeA.Public(),
			Relay: &HelloRelay{Key: relayR.Public(), Name: word, URL: word, UDP: repeat(candidate.Addr, MaxCandidates), Fingerprint: make([]byte, 32)},
		}},
		"update": {Update: &Update{Candidates: repeat(candidate, MaxCandidates), NAT: word, Heard: repeat(^weft.NodeID(0), MaxHeard)}},
	} {
		if _, err := ParseNodeMessage(must(json.Marshal(m))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestUpdatesOfAnyCandidatesComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Update{
			Candidates: rapid.SliceOfN(someCandidate(), 0, MaxCandidates).Draw(t, "candidates"),
			HomeRelay:  weft.RelayID(rapid.Uint16().Draw(t, "relay")),
		}
		got, err := ParseNodeMessage(must(json.Marshal(NodeMessage{Update: &want})))
		if diff := cmp.Diff(&want, got.Update, sameValues); err != nil || diff != "" {
			t.Fatalf("%v: %s", err, diff)
		}
	})
}
