package wireguard

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"
)

// beginnings are the states of two ends that FuzzSession goes on from: made once, and cloned for each execution.
// What a handshake takes most of its time for is not genuine: the fuzzer looks for what states and times do.
func beginnings(t testing.TB) []*world {
	strangers := newWorldOf(t, cheap, 5)
	joined := strangers.clone(t, 101)
	joined.a.packet(joined.now, packet("a", 900_000))
	joined.run(time.Second)
	joined.b.packet(joined.now, packet("b", 900_001))
	joined.run(time.Second)
	old := joined.clone(t, 102) // the next packet brings a new handshake
	old.run(RekeyAfterTime - 2*time.Second)
	renewing := old.clone(t, 103)
	renewing.run(3 * time.Second)
	renewing.a.packet(renewing.now, packet("a", 900_002))
	renewing.run(renewing.delay / 2)    // an initiation is on its way, and a packet
	crossing := strangers.clone(t, 104) // two are
	crossing.a.packet(crossing.now, packet("a", 900_003))
	crossing.b.packet(crossing.now, packet("b", 900_004))
	crossing.run(crossing.delay / 2)
	for _, w := range []*world{renewing, crossing} {
		if len(w.events) < 2 {
			t.Fatalf("%d messages are under way", len(w.events))
		}
	}
	expired := joined.clone(t, 105)
	expired.run(RejectAfterTime + time.Second)
	hopeless := joined.clone(t, 106) // the handshake is about to be given up
	hopeless.cut = true
	hopeless.a.packet(hopeless.now, packet("a", 900_005))
	hopeless.run(silentFor + RekeyAttemptTime - RekeyTimeout)
	if hopeless.a.gaveUp != 0 || hopeless.a.sent[TypeInitiation] < 15 {
		t.Fatalf("after %d initiations it was given up %d times", hopeless.a.sent[TypeInitiation], hopeless.a.gaveUp)
	}
	forgetting := joined.clone(t, 107) // the keys are about to be forgotten
	forgetting.run(forgetAfter - 10*time.Second)
	return []*world{joined, old, renewing, crossing, expired, strangers, hopeless, forgetting}
}

// maxOps bounds an input of FuzzSession, in bytes: enough for 50 steps of up to four minutes.
const maxOps = 101

// FuzzSession plays a network that delays, loses, repeats, changes and invents messages between two ends, by the
// fuzzer's word. Whatever it does, packets arrive as they were sent, at most once, no initiation is answered twice, no session outlives its
// time, and the ends find together again.
func FuzzSession(f *testing.F) {
	f.Add([]byte{5, 0, 0, 1, 1, 2, 0, 3, 9, 4, 200, 5, 1, 6, 3, 7, 7})
	f.Add([]byte{5, 0, 0, 4, 100, 0, 1, 4, 255, 4, 255, 1, 0, 6, 0, 6, 1, 6, 2, 1, 1})
	f.Add([]byte{64, 7, 1, 7, 2, 7, 3, 0, 0, 5, 0, 5, 1, 5, 2, 3, 0, 3, 1, 3, 2, 1, 9})
	f.Add([]byte{65, 0, 0, 6, 15, 3, 0, 6, 50, 5, 3, 0, 1, 6, 200})
	f.Add([]byte{66, 6, 10, 3, 0, 3, 1, 3, 0, 6, 100, 0, 0})
	f.Add([]byte{67, 2, 0, 6, 50, 2, 1, 4, 6, 0, 0, 0, 1})
	f.Add([]byte{4, 0, 0, 2, 4, 4, 160, 2, 1})
	begin := beginnings(f)
	f.Fuzz(func(t *testing.T, ops []byte) { play(t, begin, ops) })
}

// play plays one input.
func play(t testing.TB, begin []*world, ops []byte) {
	t.Helper()
	if len(ops) == 0 {
		return
	}
	w := begin[ops[0]%8].clone(t, 100)
	long := ops[0]>>5 == 0 // an eighth of all waits for the ends to find together again
	ops = ops[1:min(len(ops), maxOps)]
	var old [][]byte
	for _, x := range w.events {
		old = append(old, x.msg)
	}
	ends := [2]*end{w.a, w.b}
	for _, e := range ends {
		send := e.send
		answered := map[uint32]bool{} // by the initiation's index
		e.send = func(msg []byte) {
			if msg[0] == TypeResponse {
				index := binary.LittleEndian.Uint32(msg[atReceiver:])
				if answered[index] {
					t.Fatalf("%s answers an initiation again", e.name)
				}
				answered[index] = true
			}
			old = append(old, bytes.Clone(msg))
			send(msg)
		}
	}
	sent := map[string]bool{}
	for i, from := range []string{"a", "b", "a", "a", "b", "a"} {
		sent[string(packet(from, 900_000+i))] = true
	}
	for len(ops) >= 2 {
		op, arg := ops[0]%8, ops[1]
		ops = ops[2:]
		who := ends[arg%2]
		switch op {
		case 0, 1:
			b := packet(who.name, len(sent))
			sent[string(b)] = true
			who.packet(w.now, b)
		case 2:
			w.cut = arg%4 == 0
		case 3: // an old message comes again
			if len(old) > 0 {
				who.take(w.now, bytes.Clone(old[int(arg)%len(old)]))
			}
		case 4:
			if w.cut {
				arg /= 8 // it takes as long as it has initiations, and they are all the same
			}
			w.run(time.Duration(arg) * time.Second)
		case 5: // one bit of an old message is another
			if len(old) > 0 {
				b := bytes.Clone(old[int(arg)%len(old)])
				b[int(arg)*7%len(b)] ^= 1 << (arg % 8)
				who.take(w.now, b)
			}
		case 6:
			w.run(time.Duration(arg) * time.Millisecond)
		case 7: // something that the fuzzer wrote
			n := min(int(arg), len(ops))
			who.take(w.now, bytes.Clone(ops[:n]))
		}
	}
	w.cut = false
	if w.run(time.Second); long {
		w.run(10 * time.Minute)
	}
	for i, e := range ends {
		seen := map[string]bool{}
		for _, b := range e.got {
			text := string(trimZeros(b))
			if !sent[text] || seen[text] {
				t.Fatalf("%s got %q, which was never sent, or is there twice", e.name, text)
			}
			seen[text] = true
		}
		if !long {
			continue
		}
		other, have := ends[1-i], len(e.got)
		other.packet(w.now, packet(other.name, 999_999))
		w.run(20 * time.Second)
		if len(e.got) != have+1 {
			t.Fatalf("after all that nothing gets to %s; %v", e.name, e.errs)
		}
	}
	for _, e := range ends {
		// Four sessions and a handshake.
		if len(e.d.indices) > 5 || len(e.sessions) > 4 || len(e.d.timers) > 1 || len(e.d.byKey) != 1 {
			t.Fatalf("%s holds %d indices, %d sessions", e.name, len(e.d.indices), len(e.sessions))
		}
		for _, s := range e.sessions {
			if age := w.now.Sub(s.Began); age > RejectAfterTime {
				t.Fatalf("%s holds a session that is %v old", e.name, age)
			}
		}
	}
}

func trimZeros(b []byte) []byte {
	for len(b) > 0 && b[len(b)-1] == 0 {
		b = b[:len(b)-1]
	}
	return b
}
