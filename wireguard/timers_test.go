package wireguard

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// crowd is a Device with peers that have keys of no use; handshakes with them can be begun.
func crowd(t testing.TB, n int) (d *Device, peers []*Peer) {
	t.Helper()
	random := seeded(1)
	d = newDevice(Config{Private: newKey(random), Rand: random}, cheap)
	for i := range n {
		var k Key
		binary.BigEndian.PutUint32(k[:], uint32(i+1))
		p, err := d.AddPeer(PeerConfig{Public: k})
		if err != nil {
			t.Fatal(err)
		}
		peers = append(peers, p)
	}
	return d, peers
}

func TestEachPeerIsPolledInItsTimeAndNoOther(t *testing.T) {
	d, peers := crowd(t, 300)
	rng := rand.New(rand.NewPCG(1, 1))
	now, actions := time.Unix(1e9, 0), Actions{}
	begun, next := map[*Peer]time.Time{}, map[*Peer]time.Time{} // the row, and when the next initiation may come at the earliest
	gone, asked := map[*Peer]bool{}, 0
	polled := time.Time{}
	for range 20_000 {
		p := peers[rng.IntN(len(peers))]
		switch n := rng.IntN(100); {
		case n < 5 && begun[p].IsZero() && !gone[p]:
			d.Want(now, p, &actions)
			if len(actions.Send) > 0 {
				begun[p], next[p] = now, now.Add(RekeyTimeout)
			}
		case n == 99 && len(gone) < 100:
			d.RemovePeer(p, &actions)
			gone[p] = true
			d.Want(now, p, &actions)
			d.Observe(p, Activity{DataSent: now})
			if p.SetKeepalive(time.Second); len(actions.Send) > 0 {
				t.Fatal("a handshake is begun with a peer that was removed")
			}
		}
		d.Poll(now, &actions)
		for _, m := range actions.Send {
			asked++
			if gone[m.Peer] || begun[m.Peer].IsZero() || now.Before(next[m.Peer]) {
				t.Fatalf("an initiation that nobody wanted, or at the wrong time")
			}
			// The time before it was too early, and Poll said when to come again.
			if late := next[m.Peer].Add(maxJitter); polled.After(late) {
				t.Fatalf("an initiation due at %v at the latest came at %v, after a Poll at %v", late, now, polled)
			}
			next[m.Peer] = now.Add(RekeyTimeout)
		}
		for _, c := range actions.Changes {
			if c.What == GaveUp {
				if waited := now.Sub(begun[c.Peer]); waited < RekeyAttemptTime || waited > RekeyAttemptTime+2*RekeyTimeout {
					t.Fatalf("a peer was given up after %v", waited)
				}
				delete(begun, c.Peer)
			}
		}
		for i, p := range d.timers {
			if p.place != i || gone[p] || !p.due.After(now) || p.due.Before(actions.Next) {
				t.Fatalf("place %d of the timers has a peer of place %d that is due in %v", i, p.place, p.due.Sub(now))
			}
		}
		polled = now
		if step := time.Duration(rng.IntN(int(50 * time.Millisecond))); !actions.Next.IsZero() && rng.IntN(4) > 0 {
			now = actions.Next
		} else {
			now = now.Add(step)
		}
	}
	if asked < 1000 {
		t.Errorf("only %d initiations", asked)
	}
}

func TestPollOfIdlePeersAllocatesNothing(t *testing.T) {
	d, peers := crowd(t, 1000)
	now, actions := time.Unix(1e9, 0), Actions{}
	if n := testing.AllocsPerRun(100, func() {
		now = now.Add(time.Second)
		d.Observe(peers[7], Activity{DataReceived: now, Received: now, Sent: now})
		d.Poll(now, &actions)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkPoll is one event of one peer and a Poll, with others of which each has a timer.
func BenchmarkPoll(b *testing.B) {
	for _, n := range []int{1, 1000, 10_000} {
		b.Run(fmt.Sprintf("%d-peers", n), func(b *testing.B) {
			d, peers := crowd(b, n)
			now, actions := time.Unix(1e9, 0), Actions{}
			for i, p := range peers {
				p.forget = now.Add(time.Hour + time.Duration(i)*time.Second)
				d.touch(p)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				now = now.Add(time.Microsecond)
				d.Observe(peers[i%n], Activity{DataReceived: now, Received: now, Sent: now})
				d.Poll(now, &actions)
			}
		})
	}
}
