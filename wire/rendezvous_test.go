package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weft"
	"weft/key"
)

var (
	networkKey = must(key.ParseSigning("private-signingkey:bnoc3Smwt4_ROvTFWY_v9O8qlxZuPKby5Pv8zYBQW_E"))
	sharedBox  = must(must(key.SharedFrom(bytes.Repeat([]byte{7}, key.Size))).Box("test"))
	otherBox   = must(must(key.SharedFrom(bytes.Repeat([]byte{8}, key.Size))).Box("test"))
	theNonce   = bytes.Repeat([]byte{5}, RendezvousNonceSize)
)

func someRecord() Record {
	return Record{
		Made: 1790000000500, Since: 1790000000000, Node: nodeA.Public(), Name: "ann", Address: netip.MustParsePrefix("10.0.0.10/16"),
		Candidates: []weft.Candidate{{Addr: netip.MustParseAddrPort("192.0.2.5:30001"), Kind: weft.ServerReflexive}}, NAT: "none",
	}
}

func memberMessages() map[string]MemberMessage {
	return map[string]MemberMessage{
		"enter": {Enter: &Enter{
			Version: "1.2.3", Network: networkKey.Public(), Name: NameTag("home"), Node: nodeA.Public(), Known: true,
			Proof: SignEnter(theNonce, nodeA.Public(), networkKey),
		}},
		"claim": {Claim: &Claim{Number: 0x0A00000A, Sealed: []byte("sealed")}},
		"beat":  {Beat: &Beat{N: 7}},
		"leave": {Leave: &Leave{}},
	}
}

func rendezvousMessages() map[string]RendezvousMessage {
	return map[string]RendezvousMessage{
		"challenge": {Challenge: &Challenged{Nonce: theNonce}},
		"entered":   {Entered: &Entered{ServerVersion: "1.2.3", Relay: &weft.Relay{ID: 1, Name: "home", URL: "https://192.0.2.3", UDPPort: 3478}}},
		"members": {Members: &Members{
			Whole: true, Upsert: []Member{{Node: nodeA.Public(), Sealed: []byte("sealed")}}, Remove: []key.NodePublic{nodeB.Public()},
			Claimed: true, Ticket: []byte("ticket"),
		}},
		"heard":   {Heard: &Beat{N: 7}},
		"refusal": {Refusal: &weft.Error{Code: weft.CodeWrongSecret, Message: "the secret is another"}},
	}
}

// TestWhatMembersSaidEarlierIsStillRead fails when a document of the rendezvous has changed its meaning.
func TestWhatMembersSaidEarlierIsStillRead(t *testing.T) {
	file := filepath.Join("testdata", "rendezvous.golden.json")
	now := map[string]json.RawMessage{"record": must(json.Marshal(someRecord()))}
	for name, m := range memberMessages() {
		now[name] = must(json.Marshal(m))
	}
	for name, m := range rendezvousMessages() {
		now[name] = must(json.Marshal(m))
	}
	text := append(must(json.MarshalIndent(now, "", "  ")), '\n')
	if *update {
		write(t, file, text)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(b), string(text)); diff != "" {
		t.Errorf("what is said has changed: %s", diff)
	}
	var stored map[string]json.RawMessage
	if err := json.Unmarshal(b, &stored); err != nil {
		t.Fatal(err)
	}
	for name, want := range memberMessages() {
		got, err := ParseMemberMessage(stored[name])
		if diff := cmp.Diff(want, got, sameValues); err != nil || diff != "" {
			t.Errorf("%s: %v: %s", name, err, diff)
		}
	}
	for name, want := range rendezvousMessages() {
		got, err := ParseRendezvousMessage(stored[name])
		if diff := cmp.Diff(want, got, sameValues); err != nil || diff != "" {
			t.Errorf("%s: %v: %s", name, err, diff)
		}
	}
	got, err := parseRecord(stored["record"], nodeA.Public())
	if diff := cmp.Diff(someRecord(), got, sameValues); err != nil || diff != "" {
		t.Errorf("%v: %s", err, diff)
	}
}

func TestOnlyWhoKnowsTheTwoWordsProvesToBeAMember(t *testing.T) {
	good := *memberMessages()["enter"].Enter
	if !good.Proves(theNonce) {
		t.Fatal("a member proves nothing")
	}
	for name, change := range map[string]func(*Enter) []byte{
		"another stream's nonce": func(*Enter) []byte { return bytes.Repeat([]byte{6}, RendezvousNonceSize) },
		"a shorter nonce":        func(*Enter) []byte { return theNonce[:31] },
		"another node":           func(e *Enter) []byte { e.Node = nodeB.Public(); return theNonce },
		"another network":        func(e *Enter) []byte { e.Network = key.NewSigning().Public(); return theNonce },
		"no network":             func(e *Enter) []byte { e.Network = key.SigningPublic{}; return theNonce },
		"no proof":               func(e *Enter) []byte { e.Proof = nil; return theNonce },
		"another's proof":        func(e *Enter) []byte { e.Proof = SignEnter(theNonce, e.Node, key.NewSigning()); return theNonce },
		"a changed proof":        func(e *Enter) []byte { e.Proof = bytes.Clone(e.Proof); e.Proof[9] ^= 1; return theNonce },
	} {
		e := good
		if e.Proves(change(&e)) {
			t.Errorf("%s proves membership", name)
		}
	}
}

func TestARecordIsReadByMembersAloneAndMadeByNobodyElse(t *testing.T) {
	want := someRecord()
	sealed := must(SealRecord(want, sharedBox))
	m := Member{Node: want.Node, Sealed: sealed}
	got, err := OpenRecord(m, sharedBox)
	if diff := cmp.Diff(want, got, sameValues); err != nil || diff != "" {
		t.Fatalf("%v: %s", err, diff)
	}
	for _, word := range []string{"ann", "10.0.0.10", "192.0.2.5"} {
		if bytes.Contains(sealed, []byte(word)) {
			t.Errorf("%s stands in the sealed record", word)
		}
	}
	if _, err := OpenRecord(m, otherBox); !errors.Is(err, key.ErrOpen) {
		t.Errorf("another network opens it: %v", err)
	}
	if _, err := OpenRecord(Member{Node: nodeB.Public(), Sealed: sealed}, sharedBox); !errors.Is(err, key.ErrOpen) {
		t.Errorf("it opens as another node's: %v", err)
	}
	for bit := range 8 * len(sealed) {
		bad := bytes.Clone(sealed)
		bad[bit/8] ^= 1 << (bit % 8)
		if _, err := OpenRecord(Member{Node: want.Node, Sealed: bad}, sharedBox); !errors.Is(err, key.ErrOpen) {
			t.Fatalf("with bit %d changed it opens: %v", bit, err)
		}
	}
	long := want
	long.NAT = strings.Repeat("x", MaxSealed)
	if _, err := SealRecord(long, sharedBox); err == nil {
		t.Error("a record that is too long was sealed")
	}
}

func TestARecordThatAMemberShouldNotHaveMadeIsLeftOut(t *testing.T) {
	for name, change := range map[string]func(*Record){
		"of another node":          func(r *Record) { r.Node = nodeB.Public() },
		"of no name":               func(r *Record) { r.Name = "" },
		"of a name that is none":   func(r *Record) { r.Name = "Ann's\x1b[2J" },
		"of no address":            func(r *Record) { r.Address = netip.Prefix{} },
		"of an IPv6 address":       func(r *Record) { r.Address = netip.MustParsePrefix("fd00::1/64") },
		"of everything":            func(r *Record) { r.Address = netip.MustParsePrefix("10.0.0.10/0") },
		"of a single address":      func(r *Record) { r.Address = netip.MustParsePrefix("10.0.0.10/32") },
		"of loopback":              func(r *Record) { r.Address = netip.MustParsePrefix("127.0.0.1/8") },
		"of multicast":             func(r *Record) { r.Address = netip.MustParsePrefix("224.0.0.5/8") },
		"of the network itself":    func(r *Record) { r.Address = netip.MustParsePrefix("10.0.0.0/16") },
		"of the resolver":          func(r *Record) { r.Address = netip.MustParsePrefix("10.0.255.254/16") },
		"of the broadcast address": func(r *Record) { r.Address = netip.MustParsePrefix("10.0.255.255/16") },
		"with too many candidates": func(r *Record) { r.Candidates = make([]weft.Candidate, MaxCandidates+1) },
		"with control characters":  func(r *Record) { r.NAT = "\x07" },
	} {
		r := someRecord()
		change(&r)
		if _, err := parseRecord(must(json.Marshal(r)), nodeA.Public()); err == nil {
			t.Errorf("a record %s is taken", name)
		}
	}
	r := someRecord()
	r.Candidates = []weft.Candidate{{Addr: netip.MustParseAddrPort("224.0.0.1:1"), Kind: weft.Host}, r.Candidates[0]}
	got, err := parseRecord(must(json.Marshal(r)), nodeA.Public())
	if err != nil || len(got.Candidates) != 1 {
		t.Errorf("a candidate that nothing can be sent to: %v, %v", got.Candidates, err)
	}
}

func TestTheReservedAddressesOfARangeAreItsFirstAndItsLastTwo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.IntRange(8, 30).Draw(t, "bits")
		size := 1 << (32 - bits)
		n := rapid.OneOf(rapid.IntRange(0, size-1), rapid.SampledFrom([]int{0, 1, size - 3, size - 2, size - 1})).Draw(t, "which")
		base := netip.PrefixFrom(netip.MustParseAddr("10.77.78.0"), bits).Masked()
		b := base.Addr().As4()
		v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3]) + uint32(n)
		a := netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}), bits)
		reserved := n == 0 || n >= size-2
		if err := CheckRendezvousAddress(a); (err != nil) != reserved {
			t.Fatalf("%v of %v: %v", a, base, err)
		}
		if RendezvousService(a) != RendezvousService(base) || !base.Contains(RendezvousService(a)) {
			t.Fatalf("%v answers for names at %v", a, RendezvousService(a))
		}
	})
}

func FuzzParseMemberMessage(f *testing.F) {
	addDocuments(f, memberMessages())
	f.Fuzz(func(t *testing.T, b []byte) { comesBack(t, b, ParseMemberMessage) })
}

func FuzzParseRendezvousMessage(f *testing.F) {
	addDocuments(f, rendezvousMessages())
	f.Fuzz(func(t *testing.T, b []byte) { comesBack(t, b, ParseRendezvousMessage) })
}

// FuzzOpenRecord takes what a rendezvous showed, and the same as what a member sealed.
func FuzzOpenRecord(f *testing.F) {
	f.Add(must(json.Marshal(someRecord())))
	f.Add(must(SealRecord(someRecord(), sharedBox)))
	for _, s := range []string{"", "{}", `{"address":"10.0.0.1/16"}`, `{"made":1e99}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		node := nodeA.Public()
		for _, sealed := range [][]byte{b, sharedBox.Seal(nil, b, node.Append([]byte(recordContext)))} {
			r, err := OpenRecord(Member{Node: node, Sealed: sealed}, sharedBox)
			if err != nil {
				continue
			}
			if CheckRendezvousAddress(r.Address) != nil || r.Name == "" || r.Node != node || len(r.Candidates) > MaxCandidates {
				t.Fatalf("%s is read as %+v", b, r)
			}
			comesBack(t, b, func(b []byte) (Record, error) { return parseRecord(b, node) })
		}
	})
}
