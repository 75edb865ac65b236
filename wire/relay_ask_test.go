package wire

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weft"
)

func someNonce() *rapid.Generator[[8]byte] {
	return rapid.Custom(func(t *rapid.T) [8]byte { return [8]byte(rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(t, "nonce")) })
}

func TestWhatANodeAsksIsBelievedOfThatNodeAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Locate{Nonce: someNonce().Draw(t, "nonce"), Node: weft.NodeID(rapid.Uint32Range(1, 1<<32-1).Draw(t, "node"))}
		frame := AppendLocate(nil, l, boxAR)
		if got, err := ParseLocate(nil, frame, boxRA); err != nil || got != l || len(frame) != LocateSize {
			t.Fatalf("%v comes back as %v, %v", l, got, err)
		}
		refusedWhenChanged(t, frame, nothing, func(b []byte) error { _, err := ParseLocate(nil, b, boxRA); return err })
		if _, err := ParseLocate(nil, AppendLocate(nil, l, boxAB), boxRA); err == nil {
			t.Fatal("a Locate to somebody else opens")
		}
		if _, err := ParseLocate(nil, frame, boxAR); err == nil {
			t.Fatal("a Locate that is sent back opens")
		}

		p := Probe{
			Nonce: l.Nonce, Tx: [12]byte(rapid.SliceOfN(rapid.Byte(), 12, 12).Draw(t, "tx")),
			Port: rapid.Uint16Min(1).Draw(t, "port"), Alternate: rapid.Bool().Draw(t, "alternate"),
		}
		frame = AppendProbe(nil, p, boxAR)
		if got, err := ParseProbe(nil, frame, boxRA); err != nil || got != p || len(frame) != ProbeSize {
			t.Fatalf("%v comes back as %v, %v", p, got, err)
		}
		refusedWhenChanged(t, frame, nothing, func(b []byte) error { _, err := ParseProbe(nil, b, boxRA); return err })
		if _, err := ParseProbe(nil, frame, boxAR); err == nil {
			t.Fatal("a Probe that is sent back opens")
		}
	})
}

func TestWhatARelayAnswersIsBelievedOfThatRelayAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Located{
			Nonce: someNonce().Draw(t, "nonce"), Node: weft.NodeID(rapid.Uint32Range(1, 1<<32-1).Draw(t, "node")),
			Addr: someAddr().Draw(t, "address"),
		}
		if rapid.Bool().Draw(t, "nowhere") {
			l.Addr = netip.AddrPort{}
		}
		frame := AppendLocated(nil, l, boxRA)
		if got, err := ParseLocated(frame, boxAR); err != nil || got != l || len(frame) != LocateSize {
			t.Fatalf("%v comes back as %v, %v", l, got, err)
		}
		refusedWhenChanged(t, frame, nothing, func(b []byte) error { _, err := ParseLocated(b, boxAR); return err })

		p := Probed{Nonce: l.Nonce, Addr: someAddr().Draw(t, "to"), Outcome: ProbeOutcome(rapid.Uint8Min(1).Draw(t, "outcome"))}
		frame = AppendProbed(nil, p, boxRA)
		if got, err := ParseProbed(frame, boxAR); err != nil || got != p || len(frame) != ProbedSize {
			t.Fatalf("%v comes back as %v, %v", p, got, err)
		}
		refusedWhenChanged(t, frame, nothing, func(b []byte) error { _, err := ParseProbed(b, boxAR); return err })
	})
}

func TestNobodyAsksForNodeOrPortZero(t *testing.T) {
	if _, err := ParseLocate(nil, AppendLocate(nil, Locate{}, boxAR), boxRA); err == nil {
		t.Error("node 0 is asked for")
	}
	if _, err := ParseLocated(AppendLocated(nil, Located{}, boxRA), boxAR); err == nil {
		t.Error("node 0 is somewhere")
	}
	if _, err := ParseProbe(nil, AppendProbe(nil, Probe{}, boxAR), boxRA); err == nil {
		t.Error("port 0 is probed")
	}
	if _, err := ParseProbed(AppendProbed(nil, Probed{}, boxRA), boxAR); err == nil {
		t.Error("there is an outcome 0")
	}
}

// A Locate and a Probe are as long as all that they bring about, so that whoever repeats a recorded one has the
// relay send no more than he sends himself.
func TestAQuestionIsNoShorterThanWhatItBringsAbout(t *testing.T) {
	located := AppendLocated(nil, Located{Node: 1}, boxRA)
	if n := len(AppendLocate(nil, Locate{Node: 1}, boxAR)); n < len(located) {
		t.Errorf("%d bytes are answered with %d", n, len(located))
	}
	probed := AppendProbed(nil, Probed{Outcome: ProbeSent}, boxRA)
	if n := len(AppendProbe(nil, Probe{Port: 1}, boxAR)); n < len(probed)+ProbePacket {
		t.Errorf("%d bytes are answered with %d and %d", n, len(probed), ProbePacket)
	}
}

func TestQuestionsAreOpenedAndAnsweredWithoutAllocating(t *testing.T) {
	scratch, out := make([]byte, AskScratch), make([]byte, 0, 1024)
	locate, probe := AppendLocate(nil, Locate{Node: 1}, boxAR), AppendProbe(nil, Probe{Port: 1}, boxAR)
	if n := testing.AllocsPerRun(100, func() {
		if l, err := ParseLocate(scratch, locate, boxRA); err != nil || len(AppendLocated(out, Located{Node: l.Node}, boxRA)) == 0 {
			t.Fatal("does not open")
		}
		if p, err := ParseProbe(scratch, probe, boxRA); err != nil || len(AppendProbed(out, Probed{Nonce: p.Nonce}, boxRA)) == 0 {
			t.Fatal("does not open")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzParseAsk takes a frame as it came, and the same as a plaintext that the right key sealed.
func FuzzParseAsk(f *testing.F) {
	addGoldens(f, "locate")
	addGoldens(f, "prob")
	for _, n := range []int{locatePlain, probePlain, probedPlain} {
		f.Add(bytes.Repeat([]byte{1}, n))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, sealed := range []bool{false, true} {
			frame := func(k Kind, toRelay bool) []byte {
				if !sealed {
					return b
				}
				head := append(appendHeader(nil, k), make([]byte, 8)...)
				if toRelay {
					return boxAR.Seal(bytes.Clone(head), b, head)
				}
				return boxRA.Seal(bytes.Clone(head), b, head)
			}
			if l, err := ParseLocate(nil, frame(KindLocate, true), boxRA); err == nil {
				again, err := ParseLocate(nil, AppendLocate(nil, l, boxAR), boxRA)
				if err != nil || again != l {
					t.Errorf("%v comes back as %v, %v", l, again, err)
				}
			}
			if l, err := ParseLocated(frame(KindLocated, false), boxAR); err == nil {
				again, err := ParseLocated(AppendLocated(nil, l, boxRA), boxAR)
				if diff := cmp.Diff(l, again, sameValues); err != nil || diff != "" {
					t.Errorf("%v, %s", err, diff)
				}
			}
			if p, err := ParseProbe(nil, frame(KindProbe, true), boxRA); err == nil {
				again, err := ParseProbe(nil, AppendProbe(nil, p, boxAR), boxRA)
				if err != nil || again != p {
					t.Errorf("%v comes back as %v, %v", p, again, err)
				}
			}
			if p, err := ParseProbed(frame(KindProbed, false), boxAR); err == nil {
				again, err := ParseProbed(AppendProbed(nil, p, boxRA), boxAR)
				if diff := cmp.Diff(p, again, sameValues); err != nil || diff != "" {
					t.Errorf("%v, %s", err, diff)
				}
			}
		}
	})
}
