package wire

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weft"
	"weft/key"
)

func someCandidate() *rapid.Generator[weft.Candidate] {
	return rapid.Custom(func(t *rapid.T) weft.Candidate {
		return weft.Candidate{
			Addr: someUnderlayAddr().Draw(t, "address"),
			Kind: weft.CandidateKind(rapid.Uint8Range(uint8(weft.Host), uint8(weft.PeerReflexive)).Draw(t, "kind")),
			Link: weft.LinkID(rapid.Uint16().Draw(t, "link")),
			TCP:  rapid.Bool().Draw(t, "takes TCP"),
		}
	})
}

func someNAT() *rapid.Generator[weft.NAT] {
	return rapid.Custom(func(t *rapid.T) weft.NAT {
		n := weft.NAT{
			Mapping:    weft.Mapping(rapid.Uint8Range(0, uint8(weft.AddressAndPortDependentMapping)).Draw(t, "mapping")),
			Filtering:  weft.Filtering(rapid.Uint8Range(0, uint8(weft.AddressAndPortDependentFiltering)).Draw(t, "filtering")),
			Allocation: weft.Allocation(rapid.Uint8Range(0, uint8(weft.RandomAllocation)).Draw(t, "allocation")),
			Hairpin:    weft.Support(rapid.Uint8Range(0, uint8(weft.Unsupported)).Draw(t, "hairpin")),
		}
		if n.Allocation == weft.SequentialAllocation {
			n.Step = rapid.Int16().Draw(t, "step")
		}
		return n
	})
}

func somePeerMessage() *rapid.Generator[PeerMessage] {
	return rapid.OneOf(
		rapid.Custom(func(t *rapid.T) PeerMessage {
			return Ping{Path: rapid.Uint16().Draw(t, "path"), Tx: some8().Draw(t, "tx"), Padding: rapid.IntRange(0, 1400).Draw(t, "padding")}
		}),
		rapid.Custom(func(t *rapid.T) PeerMessage {
			return Pong{Path: rapid.Uint16().Draw(t, "path"), Tx: some8().Draw(t, "tx"), Observed: someAddr().Draw(t, "observed"), Link: weft.LinkID(rapid.Uint8().Draw(t, "link"))}
		}),
		rapid.Custom(func(t *rapid.T) PeerMessage {
			return Candidates{
				Session: rapid.Uint32().Draw(t, "session"), Seq: rapid.Uint32().Draw(t, "sequence"),
				WantReply:    rapid.Bool().Draw(t, "want reply"),
				List:         rapid.SliceOfN(someCandidate(), 0, MaxCandidates).Draw(t, "list"),
				HeardSession: rapid.Uint32().Draw(t, "heard session"), HeardSeq: rapid.Uint32().Draw(t, "heard sequence"),
				NAT: someNAT().Draw(t, "NAT"), Known: rapid.Uint16().Draw(t, "known"),
			}
		}),
		rapid.Custom(func(t *rapid.T) PeerMessage {
			m := Attempt{
				Kind:        AttemptKind(rapid.Uint8Range(uint8(Propose), uint8(End)).Draw(t, "kind")),
				Way:         AttemptWay(rapid.Uint8Range(uint8(Spray), uint8(Predict)).Draw(t, "way")),
				LeaderOpens: rapid.Bool().Draw(t, "leader opens"),
				Session:     rapid.Uint32().Draw(t, "session"), Other: rapid.Uint32().Draw(t, "other"),
				Number: rapid.Uint32().Draw(t, "number"), Next: rapid.Uint16().Draw(t, "next"), Step: rapid.Int16().Draw(t, "step"),
				Ports: rapid.SliceOfN(rapid.Uint16(), 0, MaxAttemptPorts).Draw(t, "ports"),
			}
			if m.Kind == End {
				m.Result = AttemptResult(rapid.Uint8Range(uint8(Found), uint8(Declined)).Draw(t, "result"))
			}
			return m
		}),
		rapid.Custom(func(t *rapid.T) PeerMessage {
			return Links{
				Session: rapid.Uint32().Draw(t, "session"), Seq: rapid.Uint32().Draw(t, "sequence"),
				List: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) weft.LinkNAT {
					return weft.LinkNAT{Link: weft.LinkID(rapid.Uint16().Draw(t, "link")), NAT: someNAT().Draw(t, "NAT")}
				}), 0, MaxLinks).Draw(t, "links"),
			}
		}),
		rapid.Custom(func(t *rapid.T) PeerMessage {
			return Uplinks{
				Session: rapid.Uint32().Draw(t, "session"), Seq: rapid.Uint32().Draw(t, "sequence"),
				Metrics: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) LinkMetric {
					return LinkMetric{Link: weft.LinkID(rapid.Uint16().Draw(t, "link")), Metric: rapid.Uint16().Draw(t, "metric")}
				}), 0, MaxLinks).Draw(t, "metrics"),
				Relays: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) RelayLink {
					return RelayLink{Relay: weft.RelayID(rapid.Uint16().Draw(t, "relay")), Link: weft.LinkID(rapid.Uint16().Draw(t, "link"))}
				}), 0, MaxRelayLinks).Draw(t, "relays"),
			}
		}),
		rapid.Custom(func(t *rapid.T) PeerMessage {
			p := Portal{Word: rapid.SampledFrom([]PortalWord{PortalAsks, PortalOffers, PortalRefuses}).Draw(t, "word")}
			if p.Word != PortalOffers {
				return p
			}
			v4 := func(name string) netip.Addr {
				return netip.AddrFrom4([4]byte{rapid.ByteRange(1, 223).Draw(t, name), 2, 3, 4})
			}
			if rapid.Bool().Draw(t, "IPv4") {
				p.Addr4 = netip.PrefixFrom(v4("address"), rapid.IntRange(0, 32).Draw(t, "length"))
				if rapid.Bool().Draw(t, "with a gateway") {
					p.Gateway = v4("gateway")
				}
			}
			if rapid.Bool().Draw(t, "IPv6") {
				p.Addr6 = netip.AddrFrom16([16]byte{0x20, 1, 15: rapid.Byte().Draw(t, "host")})
			}
			for range rapid.IntRange(0, MaxPortalResolvers).Draw(t, "resolvers") {
				p.Resolvers = append(p.Resolvers, v4("resolver"))
			}
			for range rapid.IntRange(0, MaxPortalResolvers).Draw(t, "resolvers of IPv6") {
				p.Resolvers = append(p.Resolvers, netip.AddrFrom16([16]byte{0x20, 1, 15: rapid.Byte().Draw(t, "resolver")}))
			}
			return p
		}),
		rapid.Custom(func(t *rapid.T) PeerMessage {
			return Report{Paths: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) PathReport {
				return PathReport{
					Path:    rapid.Uint16().Draw(t, "path"),
					Packets: rapid.Uint64().Draw(t, "packets"), Bytes: rapid.Uint64().Draw(t, "bytes"),
				}
			}), 0, MaxReports).Draw(t, "paths")}
		}),
	)
}

func TestAPeerMessageComesBackAtTheOtherNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := somePeerMessage().Draw(t, "message")
		sender := weft.NodeID(rapid.Uint32().Draw(t, "sender"))
		dst := rapid.SliceOfN(rapid.Byte(), 0, 30).Draw(t, "dst")
		// A buffer with room and one without are two ways through Seal.
		out := AppendPeer(append(make([]byte, 0, rapid.SampledFrom([]int{30, 2000}).Draw(t, "room")), dst...), boxAB, sender, want)
		frame := out[len(dst):]
		if !bytes.HasPrefix(out, dst) {
			t.Fatal("what was in the buffer is gone")
		}
		if got, err := PeerSender(frame); err != nil || got != sender {
			t.Fatalf("sender %d, %v; want %d", got, err, sender)
		}
		got, err := OpenPeer(frame, boxBA)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, sameValues); diff != "" {
			t.Fatal(diff)
		}
		if plain := want.append(nil); len(plain) > 12 && bytes.Contains(frame, plain[4:12]) && !bytes.Equal(plain[4:12], make([]byte, 8)) {
			t.Fatal("the message is legible")
		}

		refusedWhenChanged(t, frame, nothing, func(b []byte) error {
			_, err := OpenPeer(b, boxBA)
			return err
		})
		if _, err := OpenPeer(frame, boxAB); !errors.Is(err, key.ErrOpen) {
			t.Fatalf("reflected to its sender it opens: %v", err)
		}
		if _, err := OpenPeer(frame, boxAR); !errors.Is(err, key.ErrOpen) {
			t.Fatalf("under another protocol's box it opens: %v", err)
		}
	})
}

func TestAPlainMessageIsTakenWholeOrNotAtAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := somePeerMessage().Draw(t, "message")
		b := m.append(nil)
		if c, ok := m.(Candidates); ok {
			// Without its last line, it is one of an earlier version.
			got, err := ParsePeerMessage(b[:len(b)-candidatesTail])
			early := Candidates{Session: c.Session, Seq: c.Seq, WantReply: c.WantReply, List: c.List}
			if diff := cmp.Diff(PeerMessage(early), got, sameValues); err != nil || diff != "" {
				t.Fatalf("%v: %s", err, diff)
			}
		} else if _, ok := m.(Ping); !ok { // whose length is its padding
			if _, err := ParsePeerMessage(append(bytes.Clone(b), 0)); err == nil {
				t.Fatal("a message with a byte behind it is taken")
			}
			if _, err := ParsePeerMessage(b[:rapid.IntRange(0, len(b)-1).Draw(t, "cut")]); err == nil {
				t.Fatal("a cut message is taken")
			}
		}
		b[0] = rapid.Uint8Range(typePortal+1, 255).Draw(t, "type")
		if _, err := ParsePeerMessage(b); !errors.Is(err, ErrFrame) {
			t.Fatalf("a message of type %d: %v", b[0], err)
		}
	})
	for n := range 12 {
		if _, err := ParsePeerMessage(append([]byte{typePing}, make([]byte, n)...)[:n]); err == nil {
			t.Errorf("a ping of %d bytes is taken", n)
		}
	}
}

func TestACountThatLiesIsRefused(t *testing.T) {
	candidates := Candidates{List: repeat(weft.Candidate{Addr: netip.MustParseAddrPort("192.0.2.1:1"), Kind: weft.Host}, 4)}.append(nil)
	report := Report{Paths: make([]PathReport, 4)}.append(nil)
	for n := range 256 {
		candidates[2], report[2] = byte(n), byte(n)
		if _, err := ParsePeerMessage(candidates); (err == nil) != (n == 4) {
			t.Errorf("4 candidates that say that they are %d: %v", n, err)
		}
		if _, err := ParsePeerMessage(report); (err == nil) != (n == 4) {
			t.Errorf("4 reports that say that they are %d: %v", n, err)
		}
	}
	long := append([]byte{typeCandidates, 0, MaxCandidates + 1, 0}, make([]byte, 8+(MaxCandidates+1)*candidateSize)...)
	if _, err := ParsePeerMessage(long); err == nil {
		t.Errorf("%d candidates are taken", MaxCandidates+1)
	}
	long = append([]byte{typeReport, 0, MaxReports + 1, 0}, make([]byte, (MaxReports+1)*reportSize)...)
	if _, err := ParsePeerMessage(long); err == nil {
		t.Errorf("%d reports are taken", MaxReports+1)
	}
}

func TestACandidateThatNothingCanBeSentToIsPassedOver(t *testing.T) {
	good := weft.Candidate{Addr: netip.MustParseAddrPort("192.0.2.1:41641"), Kind: weft.Host, Link: 65535}
	at := func(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
	bad := []weft.Candidate{
		{},
		{Addr: at("192.0.2.1:0"), Kind: weft.Host},
		{Addr: at("0.0.0.0:5"), Kind: weft.Host}, // which Linux sends to the machine itself
		{Addr: at("[::]:5"), Kind: weft.Host},
		{Addr: at("[::ffff:0.0.0.0]:5"), Kind: weft.Host},
		{Addr: at("224.0.0.1:5"), Kind: weft.Host},
		{Addr: at("[::ffff:224.0.0.1]:5"), Kind: weft.Host},
		{Addr: at("[ff02::1]:5"), Kind: weft.Host},
		{Addr: at("255.255.255.255:5"), Kind: weft.Host},
		{Addr: at("192.0.2.1:5"), Kind: 0},
		{Addr: at("192.0.2.1:5"), Kind: weft.PeerReflexive + 1},
		{Addr: at("192.0.2.1:5"), Kind: 255},
	}
	// By the sender: the good ones are all there, and none is lost to a bad one's place.
	sent := Candidates{List: append(append(bad[:len(bad):len(bad)], repeat(good, MaxCandidates)...), good)}
	got, err := ParsePeerMessage(sent.append(nil))
	if diff := cmp.Diff(Candidates{List: repeat(good, MaxCandidates)}, got, sameValues); err != nil || diff != "" {
		t.Errorf("%v: %s", err, diff)
	}
	// And by the receiver, whoever the sender was.
	for _, x := range bad {
		b := Candidates{List: []weft.Candidate{good, good, good}}.append(nil)
		entry := append(appendAddr(nil, x.Addr), byte(x.Kind))
		copy(b[12+candidateSize:], entry)
		got, err := ParsePeerMessage(b)
		if diff := cmp.Diff(Candidates{List: []weft.Candidate{good, good}}, got, sameValues); err != nil || diff != "" {
			t.Errorf("%v: %v: %s", x, err, diff)
		}
	}
	// An address is compared without a zone, which is of another machine, and without its IPv4 mapping.
	sent.List = []weft.Candidate{{Addr: at("[fe80::1%eth0]:5"), Kind: weft.Host}, {Addr: at("[::ffff:192.0.2.1]:5"), Kind: weft.Host}}
	got, err = ParsePeerMessage(sent.append(nil))
	want := Candidates{List: []weft.Candidate{{Addr: at("[fe80::1]:5"), Kind: weft.Host}, {Addr: at("192.0.2.1:5"), Kind: weft.Host}}}
	if diff := cmp.Diff(want, got, sameValues); err != nil || diff != "" {
		t.Errorf("%v: %s", err, diff)
	}
}

func TestWhatAnAttemptDoesNotSayInWordsOfThisVersionIsDropped(t *testing.T) {
	good := Attempt{Kind: Agree, Way: Spray, Session: 1, Other: 2, Number: 3, Ports: []uint16{5}}
	for _, c := range []struct {
		name string
		at   int
		to   byte
	}{
		{"no kind", 1, 0}, {"a kind to come", 1, byte(End) + 1}, {"no way", 2, 0}, {"a way to come", 2, byte(Predict) + 1},
		{"a result of what is no end", 20, byte(Found)}, {"an end without a result", 1, byte(End)},
		{"a result to come", 20, byte(Declined) + 1}, {"a port more than there are", 21, 2}, {"a port less", 21, 0},
	} {
		b := good.append(nil)
		b[c.at] = c.to
		if m, err := ParsePeerMessage(b); !errors.Is(err, ErrFrame) {
			t.Errorf("%s: %v, %v", c.name, m, err)
		}
	}
	long := Attempt{Kind: Propose, Way: Predict, Ports: make([]uint16, MaxAttemptPorts+3)}.append(nil)
	if got, err := ParsePeerMessage(long); err != nil || len(got.(Attempt).Ports) != MaxAttemptPorts {
		t.Errorf("%v, %v", got, err)
	}
	long[21]++
	if _, err := ParsePeerMessage(append(long, 0, 0)); err == nil {
		t.Error("more ports than a message may name are taken")
	}
}

func TestADigestTellsAddressesAtANATApart(t *testing.T) {
	srflx := func(s ...string) (list []weft.Candidate) {
		for _, a := range s {
			list = append(list, weft.Candidate{Addr: netip.MustParseAddrPort(a), Kind: weft.ServerReflexive})
		}
		return list
	}
	one := Digest(srflx("203.0.113.1:5000"))
	host := weft.Candidate{Addr: netip.MustParseAddrPort("192.168.1.2:1"), Kind: weft.Host}
	six := weft.Candidate{Addr: netip.MustParseAddrPort("[2001:db8::1]:1"), Kind: weft.ServerReflexive}
	if got := Digest(append(srflx("[::ffff:203.0.113.1]:5000"), host, six)); got != one || one != 0x6DC {
		t.Errorf("%#x, and with what does not count %#x", one, got)
	}
	for _, other := range [][]weft.Candidate{
		nil, {host}, {six}, srflx("203.0.113.1:5001"), srflx("203.0.113.2:5000"), srflx("203.0.113.1:5000", "203.0.113.1:5001"),
	} {
		if got := Digest(other); got == one || got == 0 && len(other) > 0 && other[0].Addr.Addr().Is4() && other[0].Kind == weft.ServerReflexive {
			t.Errorf("%v: %#x", other, got)
		}
	}
}

func TestANATInWordsOfALaterVersionIsUnknown(t *testing.T) {
	b := Candidates{NAT: weft.NAT{Mapping: 1, Filtering: 1, Allocation: 1, Hairpin: 1}}.append(nil)
	copy(b[len(b)-natSize-2:], []byte{200, 200, 200, 200, 1, 1})
	got, err := ParsePeerMessage(b)
	if err != nil || got.(Candidates).NAT != (weft.NAT{}) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestMorePathsThanOneReportTakesAreCutOff(t *testing.T) {
	paths := make([]PathReport, MaxReports+3)
	for i := range paths {
		paths[i].Path = uint16(i)
	}
	got, err := ParsePeerMessage(Report{Paths: paths}.append(nil))
	if diff := cmp.Diff(Report{Paths: paths[:MaxReports]}, got, sameValues); err != nil || diff != "" {
		t.Errorf("%v: %s", err, diff)
	}
}

func TestReservedBytesOfAMessageAreNotLookedAt(t *testing.T) {
	ping := Ping{Path: 3, Tx: TxID{1}}
	b := ping.append(nil)
	b[1] = 0xFF
	if got, err := ParsePeerMessage(b); err != nil || got != ping {
		t.Errorf("%v, %v", got, err)
	}
	want := Candidates{WantReply: true, List: []weft.Candidate{}}
	b = want.append(nil)
	b[1], b[3] = 0xFF, 0xFF
	if got, err := ParsePeerMessage(b); err != nil || !cmp.Equal(want, got.(Candidates), sameValues) {
		t.Errorf("%v, %v", got, err)
	}
	if got := (Ping{Padding: -1}).append(nil); len(got) != 12 {
		t.Errorf("less than no padding makes %d bytes", len(got))
	}
}

func TestAFrameThatIsTooShortForAMessageHasNoSender(t *testing.T) {
	for n := range 60 {
		b := append(appendHeader(nil, KindPeer), make([]byte, n)...)
		if _, err := PeerSender(b); (err == nil) != (n >= 4+key.Overhead+1) {
			t.Errorf("%d bytes behind the header: %v", n, err)
		}
	}
}

func TestAPeerFrameIsMadeInItsBuffer(t *testing.T) {
	buf := make([]byte, 0, 1500)
	var ping PeerMessage = Ping{Path: 1}
	var candidates PeerMessage = Candidates{List: repeat(weft.Candidate{Addr: netip.MustParseAddrPort("192.0.2.1:1"), Kind: weft.Host}, 32)}
	var report PeerMessage = Report{Paths: make([]PathReport, MaxReports)}
	var attempt PeerMessage = Attempt{Kind: Propose, Ports: make([]uint16, MaxAttemptPorts)}
	for _, m := range []PeerMessage{ping, candidates, report, attempt} {
		if n := testing.AllocsPerRun(100, func() { buf = AppendPeer(buf[:0], boxAB, 7, m) }); n != 0 {
			t.Errorf("%v allocations to append a %T", n, m)
		}
	}
	if n := testing.AllocsPerRun(100, func() {
		if _, err := PeerSender(buf); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations to tell the sender", n)
	}
}

func BenchmarkAppendPeer(b *testing.B) {
	buf := make([]byte, 0, 1500)
	var m PeerMessage = Ping{Path: 1}
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendPeer(buf[:0], boxAB, 7, m)
	}
}

func BenchmarkOpenPeer(b *testing.B) {
	frame := AppendPeer(nil, boxAB, 7, Ping{Path: 1})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := OpenPeer(frame, boxBA); err != nil {
			b.Fatal(err)
		}
	}
}
