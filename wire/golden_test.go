package wire

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft"
)

var update = flag.Bool("update", false, "write the golden files of this package anew")

// A golden frame is stored in testdata/frames.golden. Of a frame that is sealed, whose nonce is new each time,
// the first clear bytes are compared, and the rest must open.
type golden struct {
	name  string
	clear int // -1: all
	frame []byte
	parse func([]byte) (any, error)
	want  any
}

func goldens() []golden {
	var (
		v4, v6 = netip.MustParseAddrPort("192.0.2.1:41641"), netip.MustParseAddrPort("[2001:db8::1]:3478")
		tx     = TxID{1, 2, 3, 4, 5, 6, 7, 8}
		nonce  = [8]byte{0xA1, 0xA2, 0xA3, 0xA4, 0xA5, 0xA6, 0xA7, 0xA8}
		cookie = [16]byte{15: 0xC0}
		stunTx = [12]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
		stream = []byte("nonce of hello..")
		ticket = Ticket{Node: 7, Network: [8]byte{0: 1, 7: 8}, Key: nodeA.Public(), NotAfter: time.Unix(1790000000, 0)}
		signed = SignTicket(nil, ticket, signing)
		token  = fixedToken()
		relays = Token{URL: "http://192.0.2.1", Server: serverS.Public(), Secret: token.Secret, Relay: true}

		hello   = Greeting{Kind: KindHello, Time: 1790000000123456789, Token: tx, Link: 0x0102}
		welcome = Greeting{Kind: KindWelcome, Answers: tx, Token: TxID(nonce), Link: 3}
		confirm = Greeting{Kind: KindConfirm, Answers: TxID(nonce), Link: 0x0102}
	)
	greeting := func(k Kind) func(b []byte) (any, error) {
		return func(b []byte) (any, error) {
			if id, err := GreetingSender(b, k); err != nil || id != 7 {
				return nil, fmt.Errorf("from %d: %w", id, err)
			}
			return OpenGreeting(b, k, boxBA)
		}
	}
	plain := func(b []byte) (any, error) { return ParsePeerMessage(b) }
	sealed := func(b []byte) (any, error) {
		if id, err := PeerSender(b); err != nil || id != 7 {
			return nil, fmt.Errorf("from %d: %w", id, err)
		}
		return OpenPeer(b, boxBA)
	}
	asToken := func(b []byte) (any, error) { return ParseToken(string(b)) }
	messages := []struct {
		name string
		m    PeerMessage
	}{
		{"ping", Ping{Path: 3, Tx: tx}},
		{"ping-padded", Ping{Path: 3, Tx: tx, Padding: 5}},
		{"pong", Pong{Path: 3, Tx: tx, Observed: v4}},
		{"pong-ipv6", Pong{Path: 3, Tx: tx, Observed: v6}},
		{"pong-relayed", Pong{Path: 3, Tx: tx}},
		{"candidates", Candidates{Session: 0xDEADBEEF, Seq: 2, WantReply: true, List: []weft.Candidate{
			{Addr: v4, Kind: weft.Host, Link: 2}, {Addr: v6, Kind: weft.PeerReflexive, Link: 0x0102},
		}}},
		{"candidates-none", Candidates{Session: 1, Seq: 1}},
		{"candidates-tcp", Candidates{Session: 1, Seq: 1, List: []weft.Candidate{
			{Addr: v4, Kind: weft.Static, Link: 2, TCP: true}, {Addr: v6, Kind: weft.Host},
		}}},
		{"candidates-nat", Candidates{
			Session: 1, Seq: 1, HeardSession: 0xDEADBEEF, HeardSeq: 2, List: []weft.Candidate{{Addr: v4, Kind: weft.ServerReflexive}},
			NAT: weft.NAT{Mapping: weft.AddressDependentMapping, Filtering: weft.AddressAndPortDependentFiltering,
				Allocation: weft.SequentialAllocation, Step: -2, Hairpin: weft.Supported},
			Known: 0x0506,
		}},
		{"attempt-propose", Attempt{Kind: Propose, Way: Spray, LeaderOpens: true, Session: 1, Other: 2, Number: 3, Ports: []uint16{1024, 65535}}},
		{"attempt-agree", Attempt{Kind: Agree, Way: Predict, Session: 1, Other: 2, Number: 4, Next: 50000, Step: -1}},
		{"attempt-end", Attempt{Kind: End, Way: Spray, Session: 1, Other: 2, Number: 3, Result: Found}},
		{"links", Links{Session: 0xDEADBEEF, Seq: 2, List: []weft.LinkNAT{
			{Link: 1, NAT: weft.NAT{Mapping: weft.EndpointIndependentMapping, Filtering: weft.AddressDependentFiltering, Hairpin: weft.Unsupported}},
			{Link: 0x0203, NAT: weft.NAT{Mapping: weft.AddressDependentMapping, Allocation: weft.SequentialAllocation, Step: -2}},
		}}},
		{"pong-link", Pong{Path: 3, Tx: tx, Observed: v4, Link: 2}},
		{"uplinks", Uplinks{Session: 0xDEADBEEF, Seq: 2, Metrics: []LinkMetric{{Link: 1, Metric: 10}, {Link: 0x0203, Metric: 65535}}, Relays: []RelayLink{{Relay: 1, Link: 0x0203}}}},
		{"portal-offers", Portal{Word: PortalOffers, Addr4: netip.MustParsePrefix("203.0.113.7/24"), Gateway: netip.MustParseAddr("203.0.113.1"),
			Addr6: netip.MustParseAddr("2001:db8::7"), Resolvers: []netip.Addr{netip.MustParseAddr("192.0.2.53")}}},
		{"portal-offers-six", Portal{Word: PortalOffers, Addr6: netip.MustParseAddr("2001:db8::7"),
			Resolvers: []netip.Addr{netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("2001:db8::53")}}},
		{"portal-asks", Portal{Word: PortalAsks}},
		{"report", Report{Paths: []PathReport{{Path: 3, Packets: 1000, Bytes: 1 << 33}, {Path: 4}}}},
	}
	var all []golden
	for _, m := range messages {
		all = append(all,
			golden{"message-" + m.name, -1, m.m.append(nil), plain, m.m},
			golden{"peer-" + m.name, PeerPrefix, AppendPeer(nil, boxAB, 7, m.m), sealed, m.m})
	}
	offer := Offer{Seq: 0x01020304, Path: 3, Answer: true}
	feedback := Feedback{
		Session: 0xDEADBEEF, Clock: 1 << 40, Base: 1<<32 + 5, NWords: 2, NPaths: 2,
		Words: [MaxFeedbackWords]uint64{1<<63 | 2, 1},
		Paths: [MaxBondPaths]FeedbackPath{
			{ID: 3, Newest: 1<<32 + 69, At: 1<<40 - 250, Packets: 1000, Bytes: 1 << 31},
			{Newest: 1<<32 - 1, At: 1 << 40, Packets: 7, Bytes: 700},
		},
	}
	unread := feedback
	unread.Paths[1].Unread = true
	asOffer := func(b []byte) (any, error) { return ParseOffer(b) }
	asFeedback := func(b []byte) (any, error) {
		var f Feedback
		err := ParseFeedback(b, &f)
		return f, err
	}
	all = append(all,
		golden{"inner-offer", -1, AppendOffer(nil, offer), asOffer, offer},
		golden{"inner-offer-padded", -1, append(AppendOffer(nil, offer), make([]byte, 8)...), asOffer, offer},
		golden{"inner-feedback", -1, AppendFeedback(nil, &feedback), asFeedback, feedback},
		golden{"inner-feedback-padded", -1, append(AppendFeedback(nil, &feedback), make([]byte, 8)...), asFeedback, feedback},
		golden{"inner-feedback-unread", -1, AppendFeedback(nil, &unread), asFeedback, unread},
		golden{"inner-feedback-empty", -1, AppendFeedback(nil, &Feedback{Session: 1}), asFeedback, Feedback{Session: 1}})
	// As versions before the NAT sent it.
	early := Candidates{Session: 1, Seq: 1, List: []weft.Candidate{{Addr: v4, Kind: weft.Host, Link: 2}}}
	all = append(all, golden{"message-candidates-early", -1, bytes.TrimSuffix(early.append(nil), make([]byte, candidatesTail)), plain, early})
	return append(all,
		golden{"data", -1, append(AppendData(nil, 7), 4, 0, 0, 0), func(b []byte) (any, error) {
			id, payload, err := ParseData(b)
			return []any{id, payload}, err
		}, []any{weft.NodeID(7), []byte{4, 0, 0, 0}}},
		golden{"ticket", -1, signed, func(b []byte) (any, error) {
			t, refusal := VerifyTicket(b, signing.Public(), ticket.NotAfter)
			if refusal != RefusedNot {
				return nil, fmt.Errorf("%v", refusal)
			}
			return t, nil
		}, ticket},
		golden{"bind", bindSealedAt, AppendBind(nil, Bind{Nonce: nonce, Cookie: cookie, Ticket: signed}, boxAR), func(b []byte) (any, error) {
			bind, err := ParseBind(b)
			if err == nil && !bind.Proves(boxRA) {
				err = fmt.Errorf("proves nothing")
			}
			return []any{bind.Nonce, bind.Cookie, bind.Ticket}, err
		}, []any{nonce, cookie, signed}},
		golden{"challenge", -1, AppendChallenge(nil, Challenge{Nonce: nonce, Cookie: cookie}), func(b []byte) (any, error) {
			return ParseChallenge(b)
		}, Challenge{Nonce: nonce, Cookie: cookie}},
		golden{"bound", HeaderSize + 8, AppendBound(nil, Bound{Nonce: nonce, Lifetime: time.Minute, Observed: v4}, boxRA), func(b []byte) (any, error) {
			return ParseBound(b, boxAR)
		}, Bound{Nonce: nonce, Lifetime: time.Minute, Observed: v4}},
		golden{"refused", -1, AppendRefused(nil, nonce, RefusedExpired), func(b []byte) (any, error) {
			n, r, err := ParseRefused(b)
			return []any{n, r}, err
		}, []any{nonce, RefusedExpired}},
		golden{"locate", askSealedAt, AppendLocate(nil, Locate{Nonce: nonce, Node: 9}, boxAR), func(b []byte) (any, error) {
			return ParseLocate(nil, b, boxRA)
		}, Locate{Nonce: nonce, Node: 9}},
		golden{"located", askSealedAt, AppendLocated(nil, Located{Nonce: nonce, Node: 9, Addr: v6}, boxRA), func(b []byte) (any, error) {
			return ParseLocated(b, boxAR)
		}, Located{Nonce: nonce, Node: 9, Addr: v6}},
		golden{"probe", askSealedAt, AppendProbe(nil, Probe{Nonce: nonce, Tx: stunTx, Port: 4000, Alternate: true}, boxAR), func(b []byte) (any, error) {
			return ParseProbe(nil, b, boxRA)
		}, Probe{Nonce: nonce, Tx: stunTx, Port: 4000, Alternate: true}},
		golden{"probed", askSealedAt, AppendProbed(nil, Probed{Nonce: nonce, Addr: v4, Outcome: ProbeSent}, boxRA), func(b []byte) (any, error) {
			return ParseProbed(b, boxAR)
		}, Probed{Nonce: nonce, Addr: v4, Outcome: ProbeSent}},
		golden{"stream-data", -1, append(AppendStreamData(nil, 7, 4), 4, 0, 0, 0), func(b []byte) (any, error) {
			typ, n, err := ParseStreamHeader(b)
			return []any{typ, n}, err
		}, []any{StreamData, 8}},
		golden{"stream-bind", StreamHeaderSize + TicketSize, AppendStreamBind(nil, stream, signed, boxAR), func(b []byte) (any, error) {
			t, proof, err := ParseStreamBind(b[StreamHeaderSize:])
			return []any{t, err == nil && StreamBindProves(stream, t, proof, boxRA)}, err
		}, []any{signed, true}},
		golden{"stream-bound", StreamHeaderSize, AppendStreamBound(nil, stream, time.Minute, boxRA), func(b []byte) (any, error) {
			return ParseStreamBound(b[StreamHeaderSize:], stream, boxAR)
		}, time.Minute},
		golden{"stream-refused", -1, AppendStreamRefused(nil, RefusedFull), func(b []byte) (any, error) {
			typ, n, err := ParseStreamHeader(b)
			return []any{typ, n, Refusal(b[len(b)-1])}, err
		}, []any{StreamRefused, 1, RefusedFull}},
		golden{"greeting-hello", PeerPrefix, AppendGreeting(nil, boxAB, 7, hello), greeting(KindHello), hello},
		golden{"greeting-welcome", PeerPrefix, AppendGreeting(nil, boxAB, 7, welcome), greeting(KindWelcome), welcome},
		golden{"greeting-confirm", PeerPrefix, AppendGreeting(nil, boxAB, 7, confirm), greeting(KindConfirm), confirm},
		golden{"token", -1, []byte(token.String()), asToken, token},
		golden{"token-relay", -1, []byte(relays.String()), asToken, relays},
	)
}

// TestAFrameOfEarlierIsStillRead fails when a byte on the wire has changed its meaning: nodes of two versions
// could no longer talk. A frame that is only new is added by -update.
func TestAFrameOfEarlierIsStillRead(t *testing.T) {
	file := filepath.Join("testdata", "frames.golden")
	all := goldens()
	if *update {
		var b bytes.Buffer
		was := readFrames(t, file)
		for _, g := range all {
			frame, ok := was[g.name]
			if ok && g.clear >= 0 {
				got, err := g.parse(frame)
				ok = err == nil && cmp.Equal(g.want, got, sameValues) // and another nonce would say nothing
			}
			if !ok || g.clear < 0 {
				frame = g.frame
			}
			fmt.Fprintf(&b, "%s %x\n", g.name, frame)
		}
		write(t, file, b.Bytes())
	}
	stored := readFrames(t, file)
	for _, g := range all {
		frame, ok := stored[g.name]
		if !ok {
			t.Errorf("%s has no golden frame", g.name)
			continue
		}
		delete(stored, g.name)
		got, err := g.parse(frame)
		if diff := cmp.Diff(g.want, got, sameValues); err != nil || diff != "" {
			t.Errorf("%s: %v: %s", g.name, err, diff)
		}
		n := g.clear
		if n < 0 {
			n = len(g.frame)
		}
		if len(frame) != len(g.frame) || !bytes.Equal(frame[:n], g.frame[:n]) {
			t.Errorf("%s is now\n%x, and was\n%x", g.name, g.frame, frame)
		}
	}
	for name := range stored {
		t.Errorf("nothing makes the golden frame %s any more", name)
	}
}

func readFrames(t testing.TB, file string) map[string][]byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil && !(*update && errors.Is(err, fs.ErrNotExist)) {
		t.Fatal(err)
	}
	frames := map[string][]byte{}
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		name, text, _ := strings.Cut(lines.Text(), " ")
		if frames[name], err = hex.DecodeString(text); err != nil {
			t.Fatalf("%s: %s: %v", file, name, err)
		}
	}
	return frames
}

func write(t testing.TB, file string, b []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestADocumentOfEarlierIsStillRead is the same of what node and server say to each other.
func TestADocumentOfEarlierIsStillRead(t *testing.T) {
	file := filepath.Join("testdata", "control.golden.json")
	type documents struct {
		Node   map[string]json.RawMessage `json:"node"`
		Server map[string]json.RawMessage `json:"server"`
	}
	now := documents{map[string]json.RawMessage{}, map[string]json.RawMessage{}}
	for name, m := range nodeMessages() {
		now.Node[name] = must(json.Marshal(m))
	}
	for name, m := range serverMessages() {
		now.Server[name] = must(json.Marshal(m))
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
	var stored documents
	if err := json.Unmarshal(b, &stored); err != nil {
		t.Fatal(err)
	}
	for name, want := range nodeMessages() {
		got, err := ParseNodeMessage(stored.Node[name])
		if diff := cmp.Diff(want, got, sameValues); err != nil || diff != "" {
			t.Errorf("%s: %v: %s", name, err, diff)
		}
	}
	for name, want := range serverMessages() {
		got, err := ParseServerMessage(stored.Server[name])
		if diff := cmp.Diff(want, got, sameValues); err != nil || diff != "" {
			t.Errorf("%s: %v: %s", name, err, diff)
		}
	}
}
