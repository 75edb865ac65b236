package bond_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"weft/bond"
	"weft/wire"
)

func TestALeapOfTheCounterIsFollowed(t *testing.T) {
	m := newMailbox(t, bond.ReceiverConfig{})
	m.arrive(1, 7, 0, 1, 1e9, 1e9+1)
	m.want(7, 0, 1, 1e9, 1e9+1)
	m.arrive(1, 7, 1e9+3, 5e9) // a hole, and a leap
	m.wait(time.Second)
	m.arrive(1, 7, 5e9+1, 5e9+2)
	m.want(7, 5e9, 1e9+3, 5e9+1, 5e9+2)
	if st := m.r.Stats(); st.Ignored != 1 {
		t.Errorf("%+v", st)
	}
}

func TestMemoryIsBoundedWhateverIsMissing(t *testing.T) {
	const limit = 1 << 20
	for _, size := range []int{60, 1400, 9000, 65000} {
		m := newMailbox(t, bond.ReceiverConfig{Memory: limit})
		m.arrive(1, 7, 0)
		most := 0
		for c := uint64(2); c < 8000; c++ { // counter 1 and each thousandth never come
			if c%1000 == 1 {
				continue
			}
			m.arriveAs(1, 7, c, size, false)
			m.now += time.Microsecond
			most = max(most, m.r.Stats().HeldBytes)
		}
		m.wait(time.Second)
		st := m.r.Stats()
		if most > limit*9/8 {
			t.Errorf("of packets of %d bytes, %d bytes are held", size, most)
		}
		if len(m.got) != 7992 || !slices.IsSortedFunc(m.got, func(a, b parcelID) int { return int(a.counter) - int(b.counter) }) {
			t.Errorf("of packets of %d bytes, %d are delivered", size, len(m.got))
		}
		if st.ByMemory == 0 && size > 1000 || st.HeldBytes != 0 {
			t.Errorf("of packets of %d bytes: %+v", size, st)
		}
	}
}

func TestACallerWhoNeverAsksGetsEverythingAtOnceWhenMemoryIsFull(t *testing.T) {
	const limit = 1 << 20
	r := bond.NewReceiver(bond.ReceiverConfig{Memory: limit})
	r.Arrive(0, 0, 1, 7, 0, 100, make([]byte, 100), false)
	given := 0
	for c := uint64(2); c < 5000; c++ {
		if r.Arrive(0, 0, 1, 7, c, 1400, make([]byte, 1400), false) {
			given++
		}
	}
	if st := r.Stats(); given == 0 || st.HeldBytes > limit*9/8 {
		t.Errorf("%d given, %+v", given, st)
	}
	for r.Next(0) != nil {
		given++
	}
	if given != 4998 {
		t.Errorf("%d of 4998 packets are given", given)
	}
}

// A route of a random world: packets by it are late by its delay and some jitter, and get lost.
type strait struct {
	delay, jitter time.Duration
	loss          float64
}

type coming struct {
	at      time.Duration
	path    bond.PathID
	session uint32
	counter uint64
	again   bool
}

// TestEachPacketThatArrivesIsDeliveredOnce over random paths, with losses, repairs, copies and new sessions; order is kept as long as what is missing is not
// later than anybody waits for.
func TestEachPacketThatArrivesIsDeliveredOnce(t *testing.T) {
	n := 300
	if *seeds > 0 {
		n = *seeds
	}
	for seed := range uint64(n) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		straits := make([]strait, 1+rnd.IntN(5))
		for i := range straits {
			straits[i] = strait{time.Duration(rnd.IntN(60)) * ms, time.Duration(rnd.IntN(5)) * ms, []float64{0, 0.001, 0.02, 0.3}[rnd.IntN(4)]}
		}
		repair := []float64{1, 0.9, 0}[rnd.IntN(3)]
		var all []coming
		session, counter := uint32(1), uint64(rnd.IntN(3000))
		now, fresh := time.Hour, 0
		last := make([]time.Duration, len(straits))
		for range 1500 {
			now += time.Duration(rnd.IntN(int(2 * ms)))
			if fresh++; fresh > 300 && rnd.IntN(300) == 0 { // new keys come seldom
				fresh = 0
				session, counter = session+1, 0
			}
			i := rnd.IntN(len(straits))
			s := straits[i]
			at := now + s.delay
			if s.jitter > 0 {
				at += time.Duration(rnd.Int64N(int64(s.jitter)))
			}
			at = max(at, last[i]) // a path keeps its order
			last[i] = at
			x := coming{at, bond.PathID(i + 1), session, counter, false}
			if rnd.Float64() >= s.loss {
				all = append(all, x)
			} else if rnd.Float64() < repair {
				x.at, x.path, x.again = at+time.Duration(10+rnd.IntN(40))*ms, bond.PathID(1+rnd.IntN(len(straits))), true
				all = append(all, x)
			}
			if rnd.IntN(50) == 0 {
				x.at += time.Duration(rnd.IntN(100)) * ms
				all = append(all, x) // a copy
			}
			counter++
		}
		slices.SortStableFunc(all, func(a, b coming) int { return int(a.at - b.at) })
		m := newMailbox(t, bond.ReceiverConfig{})
		came := map[parcelID]bool{}
		for _, x := range all {
			m.until(x.at)
			id := parcelID{x.session, x.counter}
			if came[id] {
				m.r.Duplicate(m.now, m.now, x.path, x.session, x.counter, 132)
				continue
			}
			came[id] = true
			m.arrive(x.path, x.session, x.counter)
		}
		end := m.now
		m.wait(time.Second)
		seen := map[parcelID]bool{}
		back, later := 0, 0
		top := parcelID{}
		for i, id := range m.got {
			if !came[id] || seen[id] {
				t.Fatalf("seed %d: %v is delivered twice, or never came", seed, id)
			}
			seen[id] = true
			if id.session < top.session || id.session == top.session && id.counter < top.counter {
				if back++; m.at[i] > m.at[0]+200*ms { // what a slow path brings of the time before is late
					later++
				}
			} else {
				top = id
			}
			if m.at[i] > end+151*ms {
				t.Fatalf("seed %d: %v is held until %v after the end", seed, id, m.at[i]-end)
			}
		}
		if len(seen) != len(came) {
			t.Fatalf("seed %d: %d came and %d are delivered", seed, len(came), len(seen))
		}
		st := m.r.Stats()
		if st.HeldBytes != 0 || st.Delivered != uint64(len(seen)) || uint64(back) > st.Reordered {
			t.Fatalf("seed %d: %d out of order, %+v", seed, back, st)
		}
		// What is repaired in time keeps its order, but for what takes much longer than all before it.
		if repair == 1 && later > 5 {
			t.Errorf("seed %d: %d of %d are out of order although all were repaired: %+v, %v", seed, later, len(seen), st, straits)
		}
		if m.r.Wake() != bond.Never {
			t.Errorf("seed %d: it still wants to be asked", seed)
		}
	}
}

func TestAReceiverSurvivesWhatMakesNoSense(t *testing.T) {
	packet := make([]byte, 70000)
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		r := bond.NewReceiver(bond.ReceiverConfig{Memory: 1 << 18})
		now, given := time.Duration(0), 0
		var f wire.Feedback
		edges := []uint64{0, 1, 2, 63, 64, 1023, 1025, 16383, 16384, 16385, 1 << 31, 1 << 32, 1<<63 - 1, 1 << 63, 1<<64 - 20}
		for range 3000 {
			now += time.Duration(rnd.Int64N(int64(40*ms))) - 15*ms // backwards, too
			counter := edges[rnd.IntN(len(edges))] + uint64(rnd.IntN(20))
			p, session := bond.PathID(rnd.IntN(40)), uint32(rnd.IntN(6))
			switch rnd.IntN(8) {
			case 0:
				r.Duplicate(now, now, p, session, counter, rnd.IntN(1<<20)-1000)
			case 1:
				r.Named(p, uint16(rnd.IntN(5)))
			case 2:
				r.Arrive(now, now, p, session, counter, rnd.IntN(2000), nil, rnd.IntN(2) == 0)
			default:
				if r.Arrive(now, now, p, session, counter, 1000, packet[:1+rnd.IntN(len(packet))], rnd.IntN(10) == 0) {
					given++
				}
			}
			if rnd.IntN(3) == 0 {
				for n := 0; r.Next(now) != nil; n++ {
					if n > 20000 {
						t.Fatal("it gives and gives")
					}
				}
				r.Feedback(now, &f)
				if f.NPaths > wire.MaxBondPaths || f.NWords > wire.MaxFeedbackWords {
					t.Fatal(f.NPaths, f.NWords)
				}
			}
			if st := r.Stats(); st.HeldBytes > 1<<18*9/8+65536 || st.HeldBytes < 0 {
				t.Fatalf("seed %d: %+v", seed, st)
			}
			r.Wake()
		}
		for r.Next(now+time.Hour) != nil {
		}
		if st := r.Stats(); st.HeldBytes != 0 {
			t.Errorf("seed %d: %d bytes are held for ever", seed, st.HeldBytes)
		}
	}
}
