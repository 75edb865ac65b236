package wire

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"weft"
	"weft/key"
)

// The parties of every test: two nodes, a relay, and the server that signs.
var (
	nodeA   = fixedKey[key.Node](1)
	nodeB   = fixedKey[key.Node](2)
	relayR  = fixedKey[key.Relay](3)
	serverS = fixedKey[key.Server](4)
	signing = must(key.ParseSigning("private-signingkey:BQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQU"))

	boxAB = must(PeerBox(nodeA, nodeB.Public())) // A's end
	boxBA = must(PeerBox(nodeB, nodeA.Public())) // B's end
	boxAR = must(RelayBox(nodeA, relayR.Public()))
	boxRA = must(RelayBox(relayR, nodeA.Public()))
)

func fixedKey[R key.Role](b byte) key.Private[R] {
	return must(key.PrivateFrom[R](bytes.Repeat([]byte{b}, key.Size)))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

var sameValues = cmp.Options{
	cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{}, key.NodePublic{}, key.RelayPublic{},
		key.ServerPublic{}, key.SigningPublic{}),
	cmpopts.EquateEmpty(),
}

// some16 draws 16 bytes, some8 eight.
func some16() *rapid.Generator[[16]byte] {
	return rapid.Map(rapid.SliceOfN(rapid.Byte(), 16, 16), func(b []byte) [16]byte { return [16]byte(b) })
}

func some8() *rapid.Generator[[8]byte] {
	return rapid.Map(rapid.SliceOfN(rapid.Byte(), 8, 8), func(b []byte) [8]byte { return [8]byte(b) })
}

// someAddr draws an address and port of either family, or none.
func someAddr() *rapid.Generator[netip.AddrPort] {
	return rapid.OneOf(rapid.Just(netip.AddrPort{}), someUnderlayAddr())
}

// someUnderlayAddr draws an address that a packet can be sent to.
func someUnderlayAddr() *rapid.Generator[netip.AddrPort] {
	return rapid.Custom(func(t *rapid.T) netip.AddrPort {
		ip := netip.AddrFrom16(some16().Draw(t, "ip")).Unmap()
		if rapid.Bool().Draw(t, "IPv4") {
			b := ip.As16()
			ip = netip.AddrFrom4([4]byte(b[12:]))
		}
		return netip.AddrPortFrom(ip, rapid.Uint16Min(1).Draw(t, "port"))
	}).Filter(func(a netip.AddrPort) bool {
		return !a.Addr().IsUnspecified() && !a.Addr().IsMulticast() && a.Addr() != netip.MustParseAddr("255.255.255.255")
	})
}

func someSeconds() *rapid.Generator[time.Duration] {
	return rapid.Map(rapid.Uint32(), func(n uint32) time.Duration { return time.Duration(n) * time.Second })
}

// everyFrame is one frame over UDP of each kind.
func everyFrame() map[Kind][]byte {
	return map[Kind][]byte{
		KindPeer:      AppendPeer(nil, boxAB, 7, Ping{}),
		KindData:      append(AppendData(nil, 7), 4, 0, 0, 0),
		KindBind:      AppendBind(nil, Bind{Ticket: make([]byte, TicketSize)}, boxAR),
		KindChallenge: AppendChallenge(nil, Challenge{}),
		KindBound:     AppendBound(nil, Bound{}, boxRA),
		KindRefused:   AppendRefused(nil, [8]byte{}, RefusedFull),
		KindLocate:    AppendLocate(nil, Locate{Node: 7}, boxAR),
		KindLocated:   AppendLocated(nil, Located{Node: 7}, boxRA),
		KindProbe:     AppendProbe(nil, Probe{Port: 1}, boxAR),
		KindProbed:    AppendProbed(nil, Probed{Outcome: ProbeSent}, boxRA),
	}
}

func TestEveryFrameSaysWhatItIs(t *testing.T) {
	frames := everyFrame()
	for kind, frame := range frames {
		if got, ok := KindOf(frame); !ok || got != kind {
			t.Errorf("a frame of kind %d is of kind %d, %v", kind, got, ok)
		}
		for other := range frames {
			if _, err := body(frame, other); (err == nil) != (other == kind) {
				t.Errorf("a frame of kind %d read as one of kind %d: %v", kind, other, err)
			}
		}
		for n := range HeaderSize {
			if _, ok := KindOf(frame[:n]); ok {
				t.Errorf("%d bytes are a frame", n)
			}
		}
		for bit := range 8 * HeaderSize {
			changed := bytes.Clone(frame)
			changed[bit/8] ^= 1 << (bit % 8)
			if got, ok := KindOf(changed); ok && bit/8 != 2 {
				t.Errorf("with bit %d changed, a frame of kind %d is one of kind %d", bit, kind, got)
			}
		}
	}
	for k := range 256 {
		if _, ok := KindOf([]byte{Magic, Version, byte(k), 0}); ok != (frames[Kind(k)] != nil) {
			t.Errorf("kind %d is one: %v", k, ok)
		}
	}
}

// wireGuardMessages are the four messages of the WireGuard paper, section 5.4, by their lengths, and packets of
// more than a keepalive.
func wireGuardMessages() map[byte][]int {
	return map[byte][]int{1: {148}, 2: {92}, 3: {64}, 4: {32, 48, 1312, 1472}}
}

func TestNoProtocolIsTakenForAnother(t *testing.T) {
	for typ, lengths := range wireGuardMessages() {
		for _, n := range lengths {
			for _, fill := range []byte{0, 0xFF, Magic, 0x21} {
				b := bytes.Repeat([]byte{fill}, n)
				copy(b, []byte{typ, 0, 0, 0})
				if got := Classify(b); got != ClassWireGuard {
					t.Errorf("a WireGuard message of type %d and %d bytes is of class %d", typ, n, got)
				}
				copy(b[4:], []byte{0x21, 0x12, 0xA4, 0x42}) // an index may be any
				if got := Classify(b); got != ClassWireGuard {
					t.Errorf("a WireGuard message of type %d to index 2112A442 is of class %d", typ, got)
				}
			}
		}
	}
	for kind, b := range everyFrame() {
		if got := Classify(b); got != ClassWeft {
			t.Errorf("a weft frame of kind %d is of class %d", kind, got)
		}
	}
	// STUN: every type of 14 bits, every length that its header can say (RFC 8489 section 5).
	b := make([]byte, 20, 20+1500)
	binary.BigEndian.PutUint32(b[4:], 0x2112A442)
	for typ := range 1 << 14 {
		binary.BigEndian.PutUint16(b, uint16(typ))
		for _, n := range []int{0, 4, 8, 12, 256, 1024, 1500} {
			binary.BigEndian.PutUint16(b[2:], uint16(n))
			// Nobody has these types, or sends them without an attribute: see Classify.
			want := ClassSTUN
			if n == 0 && typ >= 0x0100 && typ <= 0x0400 && typ&0xFF == 0 {
				want = ClassWireGuard
			}
			if got := Classify(b[:20+n]); got != want {
				t.Fatalf("a STUN message of type %#04x with %d bytes of attributes is of class %d", typ, n, got)
			}
		}
	}
}

func TestWhatIsNoProtocolHasNoClass(t *testing.T) {
	for first := range 256 {
		for n := range 40 {
			b := bytes.Repeat([]byte{0xEE}, n)
			if n > 0 {
				b[0] = byte(first)
			}
			want := ClassUnknown
			switch {
			case n < 4:
			case first == Magic:
				want = ClassWeft
			case first < 0x40 && n >= 20:
				want = ClassSTUN
			}
			if got := Classify(b); got != want {
				t.Fatalf("%d bytes that begin with %#x are of class %d, want %d", n, first, got, want)
			}
		}
	}
	if n := testing.AllocsPerRun(100, func() { Classify(make([]byte, 64)); KindOf(make([]byte, 64)) }); n != 0 {
		t.Errorf("%v allocations to classify", n)
	}
}

func TestAnAddressComesBackAsWeCompareIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := someAddr().Draw(t, "address")
		b := appendAddr([]byte("x"), a)
		if len(b) != 1+addrSize || parseAddr(b[1:]) != a {
			t.Fatalf("%v comes back as %v", a, parseAddr(b[1:]))
		}
		if a.Addr().Is4() { // the same, however its holder wrote it
			mapped := netip.AddrPortFrom(netip.AddrFrom16(a.Addr().As16()), a.Port())
			if !bytes.Equal(appendAddr(nil, mapped), b[1:]) {
				t.Fatalf("%v and %v are two addresses on the wire", a, mapped)
			}
		}
	})
	if b := appendAddr(nil, netip.AddrPort{}); !bytes.Equal(b, make([]byte, addrSize)) {
		t.Errorf("no address is %x", b)
	}
	for _, s := range []string{"0.0.0.0:5", "[::]:5", "192.0.2.1:0", "[fe80::1]:9"} {
		if a := netip.MustParseAddrPort(s); parseAddr(appendAddr(nil, a)) != a {
			t.Errorf("%v comes back as %v", a, parseAddr(appendAddr(nil, a)))
		}
	}
}

// TestAStrangerGetsNoMoreThanHeSends is the rule against amplification: what a relay answers to somebody whose
// address it does not know is shorter than what it answers. docs/wire.md has the same table.
func TestAStrangerGetsNoMoreThanHeSends(t *testing.T) {
	frames := everyFrame()
	sizes := map[string][2]int{
		"Bind":      {len(frames[KindBind]), 176},
		"Challenge": {len(frames[KindChallenge]), 28},
		"Bound":     {len(frames[KindBound]), 62},
		"Refused":   {len(frames[KindRefused]), 16},
		"Ping":      {len(frames[KindPeer]), 48},
		"Pong":      {len(AppendPeer(nil, boxAB, 7, Pong{})), 66},
		"Report":    {len(AppendPeer(nil, boxAB, 7, Report{Paths: make([]PathReport, MaxReports)})), 360},
		"Candidates": {len(AppendPeer(nil, boxAB, 7, Candidates{
			List: repeat(weft.Candidate{Addr: netip.MustParseAddrPort("192.0.2.1:1"), Kind: weft.Host}, MaxCandidates),
		})), 768},
		"Attempt": {len(AppendPeer(nil, boxAB, 7, Attempt{Kind: Propose, Way: Spray, Ports: make([]uint16, MaxAttemptPorts)})), 188},
		"Links":   {len(AppendPeer(nil, boxAB, 7, Links{List: make([]weft.LinkNAT, MaxLinks+1)})), 176},
		"Uplinks": {len(AppendPeer(nil, boxAB, 7, Uplinks{
			Metrics: make([]LinkMetric, MaxLinks+1), Relays: make([]RelayLink, MaxRelayLinks+1),
		})), 176},
		"Portal":  {len(AppendPeer(nil, boxAB, 7, Portal{Word: PortalAsks})), 76},
		"Locate":  {len(frames[KindLocate]), 64},
		"Located": {len(frames[KindLocated]), 64},
		"Probe":   {len(frames[KindProbe]), 116},
		"Probed":  {len(frames[KindProbed]), 60},
		"Data":    {DataPrefix, 8},
		"Ticket":  {TicketSize, 120},
	}
	for name, got := range sizes {
		if got[0] != got[1] {
			t.Errorf("%s has %d bytes, not the %d of docs/wire.md", name, got[0], got[1])
		}
	}
	for _, answer := range []string{"Challenge", "Bound", "Refused"} {
		if sizes[answer][0] >= sizes["Bind"][0] {
			t.Errorf("%s is as long as the Bind that it answers", answer)
		}
	}
	// The longest peer frame through a relay fits the smallest MTU that IPv6 has (RFC 8200 section 5).
	if n := sizes["Candidates"][0] + DataPrefix + 40 + 8; n > 1280 {
		t.Errorf("candidates make a packet of %d bytes", n)
	}
}

func repeat[T any](v T, n int) []T {
	out := make([]T, n)
	for i := range out {
		out[i] = v
	}
	return out
}

// refusedWhenChanged checks that a parser takes no prefix of a frame, nothing longer, and no frame with a bit
// changed, other than bits that the caller excuses.
func refusedWhenChanged(t *rapid.T, frame []byte, excused func(at int) bool, parse func([]byte) error) {
	t.Helper()
	if err := parse(frame); err != nil {
		t.Fatalf("a good frame: %v", err)
	}
	if n := rapid.IntRange(0, len(frame)-1).Draw(t, "cut"); parse(frame[:n]) == nil {
		t.Fatalf("%d of %d bytes are taken", n, len(frame))
	}
	if parse(append(bytes.Clone(frame), 0)) == nil {
		t.Fatal("a frame with a byte behind it is taken")
	}
	changed := bytes.Clone(frame)
	at := rapid.IntRange(0, len(frame)-1).Draw(t, "byte")
	changed[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
	if !excused(at) && parse(changed) == nil {
		t.Fatalf("a frame with byte %d changed is taken", at)
	}
}

func nothing(int) bool { return false }
