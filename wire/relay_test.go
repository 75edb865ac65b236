package wire

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weft"
	"weft/key"
)

func someTicket() *rapid.Generator[Ticket] {
	return rapid.Custom(func(t *rapid.T) Ticket {
		network, k := some8().Draw(t, "network"), some16().Draw(t, "key")
		return Ticket{
			Node:     weft.NodeID(rapid.Uint32Min(1).Draw(t, "node")),
			Network:  network,
			Key:      must(key.PublicFrom[key.Node](append(k[:], k[:]...))),
			NotAfter: time.Unix(rapid.Int64().Draw(t, "not after"), 0),
		}
	})
}

func TestATicketAdmitsUntilItsEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := someTicket().Draw(t, "ticket")
		want.NotAfter = time.Unix(rapid.Int64Range(0, 1<<40).Draw(t, "not after"), 0)
		b := SignTicket([]byte("dst"), want, signing)[3:]
		if len(b) != TicketSize {
			t.Fatalf("a ticket of %d bytes", len(b))
		}
		parsed, err := ParseTicket(b)
		if diff := cmp.Diff(want, parsed, sameValues); err != nil || diff != "" {
			t.Fatalf("%v: %s", err, diff)
		}
		got, refusal := VerifyTicket(b, signing.Public(), want.NotAfter)
		if diff := cmp.Diff(want, got, sameValues); refusal != RefusedNot || diff != "" {
			t.Fatalf("%v: %s", refusal, diff)
		}
		if _, refusal := VerifyTicket(b, signing.Public(), want.NotAfter.Add(time.Nanosecond)); refusal != RefusedExpired {
			t.Fatalf("past its end: %v", refusal)
		}
		if _, refusal := VerifyTicket(b, key.NewSigning().Public(), want.NotAfter); refusal != RefusedForged {
			t.Fatalf("at another server's relay: %v", refusal)
		}
		if _, refusal := VerifyTicket(b, key.SigningPublic{}, want.NotAfter); refusal != RefusedForged {
			t.Fatalf("at a relay that knows no server: %v", refusal)
		}
		refusedWhenChanged(t, b, nothing, func(b []byte) error {
			if got, refusal := VerifyTicket(b, signing.Public(), time.Unix(0, 0)); refusal != RefusedNot {
				if got != (Ticket{}) || refusal != RefusedForged {
					t.Fatalf("%v, %v", got, refusal)
				}
				return ErrFrame
			}
			return nil
		})
	})
}

func TestATicketOfNobodyIsNone(t *testing.T) {
	b := SignTicket(nil, Ticket{Node: 0, NotAfter: time.Unix(1<<40, 0)}, signing)
	if _, err := ParseTicket(b); !errors.Is(err, ErrFrame) {
		t.Errorf("%v", err)
	}
	if _, refusal := VerifyTicket(b, signing.Public(), time.Unix(0, 0)); refusal != RefusedForged {
		t.Errorf("%v", refusal)
	}
}

func TestWhatTheServerSignsElseIsNoTicket(t *testing.T) {
	ticket := SignTicket(nil, Ticket{Node: 7, NotAfter: time.Unix(1<<40, 0)}, signing)
	forged := signing.Sign(bytes.Clone(ticket[:ticketBody]), ticket[:ticketBody]) // without ticketContext
	if _, refusal := VerifyTicket(forged, signing.Public(), time.Unix(0, 0)); refusal != RefusedForged {
		t.Errorf("%v", refusal)
	}
}

func TestABindProvesTheNodeOfItsTicket(t *testing.T) {
	other := must(RelayBox(relayR, nodeB.Public()))
	otherRelay := must(RelayBox(fixedKey[key.Relay](9), nodeA.Public()))
	rapid.Check(t, func(t *rapid.T) {
		ticket := SignTicket(nil, someTicket().Draw(t, "ticket"), signing)
		want := Bind{Nonce: some8().Draw(t, "nonce"), Cookie: some16().Draw(t, "cookie"), Ticket: ticket}
		frame := AppendBind([]byte("dst"), want, boxAR)[3:]
		got, err := ParseBind(frame)
		if err != nil || got.Nonce != want.Nonce || got.Cookie != want.Cookie || !bytes.Equal(got.Ticket, ticket) {
			t.Fatalf("%v, %v", got, err)
		}
		if !got.Proves(boxRA) {
			t.Fatal("its sender is not believed")
		}
		for what, box := range map[string]key.Box{
			"another node's": other, "another relay's": otherRelay, "the sender's own": boxAR, "no": {}, "a peer's": boxBA,
		} {
			if got.Proves(box) {
				t.Fatalf("it proves itself under %s box", what)
			}
		}
		refusedWhenChanged(t, frame, nothing, func(b []byte) error {
			got, err := ParseBind(b)
			if err == nil && !got.Proves(boxRA) {
				return key.ErrOpen
			}
			return err
		})
	})
	if (Bind{}).Proves(boxRA) {
		t.Error("a Bind that nobody sent proves something")
	}
}

func TestAChallengeComesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Challenge{Nonce: some8().Draw(t, "nonce"), Cookie: some16().Draw(t, "cookie")}
		frame := AppendChallenge([]byte("dst"), want)[3:]
		if got, err := ParseChallenge(frame); err != nil || got != want {
			t.Fatalf("%v, %v", got, err)
		}
		refusedWhenChanged(t, frame, func(at int) bool { return at >= HeaderSize }, func(b []byte) error {
			_, err := ParseChallenge(b)
			return err
		})
	})
}

func TestABoundIsBelievedOfTheRelayAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Bound{Nonce: some8().Draw(t, "nonce"), Lifetime: someSeconds().Draw(t, "lifetime"), Observed: someAddr().Draw(t, "observed")}
		frame := AppendBound([]byte("dst"), want, boxRA)[3:]
		if got, err := ParseBound(frame, boxAR); err != nil || got != want {
			t.Fatalf("%v, %v; want %v", got, err, want)
		}
		for what, box := range map[string]key.Box{"the relay's own": boxRA, "no": {}, "a peer's": boxAB} {
			if _, err := ParseBound(frame, box); err == nil {
				t.Fatalf("it opens under %s box", what)
			}
		}
		refusedWhenChanged(t, frame, nothing, func(b []byte) error {
			_, err := ParseBound(b, boxAR)
			return err
		})
	})
}

func TestARefusalSaysWhy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nonce := some8().Draw(t, "nonce")
		refusal := Refusal(rapid.Uint8Min(1).Draw(t, "refusal"))
		frame := AppendRefused([]byte("dst"), nonce, refusal)[3:]
		if gotNonce, got, err := ParseRefused(frame); err != nil || gotNonce != nonce || got != refusal {
			t.Fatalf("%v, %v, %v", gotNonce, got, err)
		}
		refusedWhenChanged(t, frame, func(at int) bool { return at >= HeaderSize }, func(b []byte) error {
			_, _, err := ParseRefused(b)
			return err
		})
	})
	if _, _, err := ParseRefused(AppendRefused(nil, [8]byte{}, RefusedNot)); !errors.Is(err, ErrFrame) {
		t.Errorf("a refusal that does not refuse: %v", err)
	}
	seen := map[string]Refusal{}
	for i := range 256 {
		s := Refusal(i).String()
		if was, ok := seen[s]; ok || s == "" {
			t.Errorf("refusals %d and %d are both %q", was, i, s)
		}
		seen[s] = Refusal(i)
	}
}

func TestARelayChangesTheIDAndNothingElse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from, to := weft.NodeID(rapid.Uint32().Draw(t, "from")), weft.NodeID(rapid.Uint32().Draw(t, "to"))
		payload := rapid.SliceOfN(rapid.Byte(), 1, 1500).Draw(t, "payload")
		frame := append(AppendData([]byte("dst"), to), payload...)[3:]
		if len(frame) != DataPrefix+len(payload) {
			t.Fatalf("%d bytes in front of the datagram", len(frame)-len(payload))
		}
		id, got, err := ParseData(frame)
		if err != nil || id != to || !bytes.Equal(got, payload) {
			t.Fatalf("%d, %x, %v", id, got, err)
		}
		SetDataID(frame, from)
		id, got, err = ParseData(frame)
		if err != nil || id != from || !bytes.Equal(got, payload) || &got[0] != &frame[DataPrefix] {
			t.Fatalf("%d, %x, %v", id, got, err)
		}
	})
	if _, _, err := ParseData(AppendData(nil, 7)); !errors.Is(err, ErrFrame) {
		t.Errorf("a frame that carries nothing: %v", err)
	}
	frame := append(AppendData(nil, 7), 1)
	if n := testing.AllocsPerRun(100, func() {
		if _, _, err := ParseData(frame); err != nil {
			t.Fatal(err)
		}
		SetDataID(frame, 8)
		frame = append(AppendData(frame[:0], 7), 1)
	}); n != 0 {
		t.Errorf("%v allocations to forward", n)
	}
}

// BenchmarkChallenge is what a relay does for a stranger.
func BenchmarkChallenge(b *testing.B) {
	frame, out := everyFrame()[KindBind], make([]byte, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		bind, err := ParseBind(frame)
		if err != nil {
			b.Fatal(err)
		}
		out = AppendChallenge(out[:0], Challenge{Nonce: bind.Nonce})
	}
}

// BenchmarkVerifyTicket is part of what it does for one whose cookie is right.
func BenchmarkVerifyTicket(b *testing.B) {
	ticket, public := SignTicket(nil, Ticket{Node: 7, NotAfter: time.Unix(1<<40, 0)}, signing), signing.Public()
	b.ReportAllocs()
	for b.Loop() {
		if _, refusal := VerifyTicket(ticket, public, time.Unix(0, 0)); refusal != RefusedNot {
			b.Fatal(refusal)
		}
	}
}
