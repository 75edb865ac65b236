package relay

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weft"
	"weft/wire"
)

func bufioReader(r io.Reader) *bufio.Reader { return bufio.NewReaderSize(r, 16) }

// frame is the model's: its bytes and when it came.
type frame struct {
	b  []byte
	at time.Duration
}

// What is taken from a queue is what was added, in order, without what was dropped: never more waits than
// the bound, nothing older than the age is taken, and only the oldest are dropped.
func TestAQueueLosesTheOldestAndNothingElse(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const age = 100 * time.Millisecond
		most := rapid.SampledFrom([]int{200_000, 3 << 20}).Draw(rt, "most")
		var now time.Duration
		dropped := map[Drop]int{}
		q := newQueue(most, age, func() time.Duration { return now }, func(why Drop, n int) { dropped[why] += n })
		var model []frame // frames that may still come, oldest first
		var urgent []byte
		added, taken := 0, 0
		one := func(n int) []byte { // no two alike
			b := wire.AppendStreamData(nil, weft.NodeID(added), n)
			return append(b, bytes.Repeat([]byte{byte(added)}, n)...)
		}
		size := rapid.OneOf(rapid.IntRange(1, 100), rapid.Just(1452), rapid.IntRange(1, 65531))
		rt.Repeat(map[string]func(*rapid.T){
			"send": func(rt *rapid.T) {
				n := size.Draw(rt, "size")
				b := one(n)
				if err := q.send(weft.NodeID(added), [][]byte{b[8:]}); err != nil {
					rt.Fatal(err)
				}
				model = append(model, frame{b, now})
				added++
			},
			"a run of UDP": func(rt *rapid.T) {
				n, count := rapid.IntRange(4, 3000).Draw(rt, "size"), rapid.IntRange(1, 40).Draw(rt, "count")
				var run []byte
				for range count {
					b := one(n)
					copy(b[8:], b[4:8]) // the number
					binary.BigEndian.PutUint32(b[4:], 77_000_000)
					run = append(wire.AppendData(run, 5), b[8:]...)
					model = append(model, frame{b, now})
					added++
				}
				q.datagrams(77_000_000, run, n+wire.DataPrefix)
			},
			"frames": func(rt *rapid.T) {
				var all []byte
				for range rapid.IntRange(1, 60).Draw(rt, "count") {
					b := one(size.Draw(rt, "size"))
					all = append(all, b...)
					model = append(model, frame{b, now})
					added++
				}
				q.frames(all)
			},
			"control": func(rt *rapid.T) {
				ping := append(wire.AppendStreamHeader(nil, wire.StreamPing, 8), 1, 2, 3, 4, 5, 6, 7, byte(added))
				if len(urgent) < 1000 {
					urgent = append(urgent, ping...)
					q.control(func(dst []byte) []byte { return append(dst, ping...) })
				}
			},
			"time": func(rt *rapid.T) {
				now += time.Duration(rapid.IntRange(1, 60).Draw(rt, "ms")) * time.Millisecond
			},
			"take": func(rt *rapid.T) {
				first, c, _ := q.take(nil)
				if !bytes.Equal(first, urgent) {
					rt.Fatalf("%x comes first, not %x", first, urgent)
				}
				urgent = nil
				if c == nil {
					return
				}
				b := c.b[c.start:c.end]
				if n, err := wholeFrames(b); err != nil || n != len(b) {
					rt.Fatal("a chunk is not of whole frames")
				}
				count := 0
				for len(b) > 0 {
					for len(model) > 0 && !bytes.HasPrefix(b, model[0].b) {
						model = model[1:] // dropped, as the counts must say
					}
					if len(model) == 0 {
						rt.Fatal("a frame comes that was not added, or out of order")
					}
					if now-model[0].at > age {
						rt.Fatalf("a frame comes after %v", now-model[0].at)
					}
					b, model = b[len(model[0].b):], model[1:]
					count++
				}
				if count != c.count {
					rt.Fatalf("a chunk of %d frames says %d", count, c.count)
				}
				taken += count
				chunks.Put(c)
			},
			"": func(rt *rapid.T) {
				waiting, frames := 0, 0
				for c := q.head; c != nil; c = c.next {
					waiting += c.end - c.start
					frames += c.count
				}
				if waiting != q.size || waiting > most {
					rt.Fatalf("%d bytes wait, it says %d", waiting, q.size)
				}
				if waiting > sureBytes+q.borrowed || q.borrowed < 0 {
					rt.Fatalf("%d bytes wait, with %d borrowed", waiting, q.borrowed)
				}
				if added != taken+frames+dropped[DropQueue]+dropped[DropAge] {
					rt.Fatalf("%d added; %d taken, %d wait, dropped %v", added, taken, frames, dropped)
				}
			},
		})
	})
}

func TestNothingIsDroppedBelowTheBounds(t *testing.T) {
	q := newQueue(1<<20, time.Second, func() time.Duration { return 0 }, func(why Drop, n int) { t.Errorf("%d dropped: %v", n, why) })
	for range 700 {
		q.send(1, [][]byte{make([]byte, 1452)})
	}
	n := 0
	for {
		_, c, _ := q.take(nil)
		if c == nil {
			break
		}
		if len(c.b)-c.end > 1460 && q.head != nil {
			t.Errorf("a chunk of %d bytes is written while more waits", c.end-c.start)
		}
		n += c.count
	}
	if n != 700 {
		t.Errorf("%d of 700 come", n)
	}
}

func TestAClosedQueueTakesNothingAndGivesWhatIsUrgent(t *testing.T) {
	q := newQueue(1<<20, time.Second, func() time.Duration { return 0 }, func(Drop, int) {})
	q.send(1, [][]byte{{1}})
	q.control(func(b []byte) []byte { return wire.AppendStreamRefused(b, wire.RefusedRevoked) })
	q.close()
	if err := q.send(1, [][]byte{{1}}); err == nil {
		t.Error("it takes another")
	}
	q.frames([]byte{5, 0, 0, 5, 0, 0, 0, 1, 'x'})
	if first, c, open := q.take(nil); len(first) != 5 || c != nil || !open {
		t.Errorf("%x, %v, %v", first, c, open)
	}
	if first, c, open := q.take(nil); len(first) != 0 || c != nil || open {
		t.Errorf("%x, %v, %v", first, c, open)
	}
}

func TestPingsThatNobodyReadsDoNotPileUp(t *testing.T) {
	q := newQueue(1<<20, time.Second, func() time.Duration { return 0 }, func(Drop, int) {})
	for range 10_000 {
		q.control(func(b []byte) []byte {
			return append(wire.AppendStreamHeader(b, wire.StreamPong, 8), 1, 2, 3, 4, 5, 6, 7, 8)
		})
	}
	if first, _, _ := q.take(nil); len(first) > 2<<10 {
		t.Errorf("%d bytes of answers wait", len(first))
	}
}
