package wireguard

import (
	"testing"
	"time"
)

// FuzzSession plays a network that delays, loses, repeats, changes and invents messages between two ends, by the
// fuzzer's word. Whatever it does, packets arrive as they were sent, at most once, and the ends find together again.
func FuzzSession(f *testing.F) {
	f.Add([]byte{0, 0, 1, 1, 2, 0, 3, 9, 4, 200, 5, 1, 6, 3, 7, 7})
	f.Add([]byte{0, 0, 4, 100, 0, 1, 4, 255, 4, 255, 1, 0, 6, 0, 6, 1, 6, 2, 1, 1})
	f.Add([]byte{7, 1, 7, 2, 7, 3, 0, 0, 5, 0, 5, 1, 5, 2, 3, 0, 3, 1, 3, 2, 1, 9})
	f.Fuzz(func(t *testing.T, ops []byte) {
		w := newWorld(t, 5)
		var old [][]byte
		keep := func(e *end) {
			send := e.send
			e.send = func(msg []byte) {
				old = append(old, append([]byte(nil), msg...))
				send(msg)
			}
		}
		keep(w.a)
		keep(w.b)
		ends := [2]*end{w.a, w.b}
		sent := map[string]bool{}
		ops = ops[:min(len(ops), 400)]
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
					who.take(w.now, append([]byte(nil), old[int(arg)%len(old)]...))
				}
			case 4:
				w.run(time.Duration(arg) * time.Second)
			case 5: // one bit of an old message is another
				if len(old) > 0 {
					b := append([]byte(nil), old[int(arg)%len(old)]...)
					b[int(arg)*7%len(b)] ^= 1 << (arg % 8)
					who.take(w.now, b)
				}
			case 6:
				w.run(time.Duration(arg) * time.Millisecond)
			case 7: // something that the fuzzer wrote
				n := min(int(arg), len(ops))
				who.take(w.now, append([]byte(nil), ops[:n]...))
			}
		}
		w.cut = false
		w.run(10 * time.Minute)
		for i, e := range ends {
			seen := map[string]bool{}
			for _, b := range e.got {
				text := string(trimZeros(b))
				if !sent[text] || seen[text] {
					t.Fatalf("%s got %q, which was never sent, or is there twice", e.name, text)
				}
				seen[text] = true
			}
			other, have := ends[1-i], len(e.got)
			other.packet(w.now, packet(other.name, 999_999))
			w.run(20 * time.Second)
			if len(e.got) != have+1 {
				t.Fatalf("after all that nothing gets to %s; %v", e.name, e.errs)
			}
		}
		if len(w.a.d.indices) > 8 || len(w.b.d.indices) > 8 {
			t.Fatalf("indices are not given back: %d, %d", len(w.a.d.indices), len(w.b.d.indices))
		}
	})
}

func trimZeros(b []byte) []byte {
	for len(b) > 0 && b[len(b)-1] == 0 {
		b = b[:len(b)-1]
	}
	return b
}
