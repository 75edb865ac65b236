package bond_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"weft/bond"
	"weft/wire"
)

const ms = time.Millisecond

// A mailbox has a Receiver, asks it whenever it wants to be asked, and writes down what it gives.
type mailbox struct {
	t   testing.TB
	r   *bond.Receiver
	now time.Duration
	got []parcelID
	at  []time.Duration
	fed []fed
}

type parcelID struct {
	session uint32
	counter uint64
}

type fed struct {
	at time.Duration
	f  wire.Feedback
}

func newMailbox(t testing.TB, c bond.ReceiverConfig) *mailbox {
	return &mailbox{t: t, r: bond.NewReceiver(c), now: time.Hour}
}

func payload(session uint32, counter uint64, size int) []byte {
	b := make([]byte, max(size, 12))
	binary.BigEndian.PutUint32(b, session)
	binary.BigEndian.PutUint64(b[4:], counter)
	for i := 12; i < len(b); i++ {
		b[i] = byte(counter)
	}
	return b
}

func (m *mailbox) take(b []byte) {
	id := parcelID{binary.BigEndian.Uint32(b), binary.BigEndian.Uint64(b[4:])}
	for _, x := range b[12:] {
		if x != byte(id.counter) {
			m.t.Fatalf("packet %v was changed", id)
		}
	}
	m.got, m.at = append(m.got, id), append(m.at, m.now)
}

// wait lets time pass.
func (m *mailbox) wait(d time.Duration) { m.until(m.now + d) }

func (m *mailbox) until(end time.Duration) {
	for spins := 0; ; spins++ {
		m.drain()
		w := m.r.Wake()
		if w > end {
			break
		}
		if w > m.now {
			m.now, spins = w, 0
		}
		if spins > 10 {
			m.t.Fatalf("it wants to be asked at %v, and has nothing at %v", w, m.now)
		}
	}
	m.now = end
}

func (m *mailbox) drain() {
	for b := m.r.Next(m.now); b != nil; b = m.r.Next(m.now) {
		m.take(b)
	}
	var f wire.Feedback
	for m.r.Feedback(m.now, &f) {
		m.fed = append(m.fed, fed{m.now, f})
	}
}

// arrive is told of a packet by a path.
func (m *mailbox) arrive(p bond.PathID, session uint32, counters ...uint64) {
	for _, c := range counters {
		m.arriveAs(p, session, c, 100, false)
	}
}

func (m *mailbox) arriveAs(p bond.PathID, session uint32, counter uint64, size int, urgent bool) {
	b := payload(session, counter, size)
	if m.r.Arrive(m.now, m.now, p, session, counter, len(b)+32, b, urgent) {
		m.take(b)
	}
	clear(b) // it is the caller's
	m.drain()
}

func (m *mailbox) want(session uint32, counters ...uint64) {
	m.t.Helper()
	var want []parcelID
	for _, c := range counters {
		want = append(want, parcelID{session, c})
	}
	if !slices.Equal(m.got, want) {
		m.t.Errorf("delivered %v, want %v", m.got, want)
	}
	m.got, m.at = nil, nil
}

func TestWhatComesInOrderIsDeliveredAtOnce(t *testing.T) {
	m := newMailbox(t, bond.ReceiverConfig{})
	m.arrive(1, 7, 5, 6, 7)
	m.want(7, 5, 6, 7)
	if st := m.r.Stats(); st.Held != 0 || st.Delivered != 3 || st.Reordered != 0 {
		t.Errorf("%+v", st)
	}
}

func TestTwoPathsAreMergedIntoOneOrder(t *testing.T) {
	m := newMailbox(t, bond.ReceiverConfig{})
	m.arrive(1, 7, 0, 1)
	m.arrive(2, 7, 4, 5, 6)
	m.wait(30 * ms)
	m.want(7, 0, 1)
	m.arrive(1, 7, 2)
	m.want(7, 2)
	m.arrive(1, 7, 3)
	m.want(7, 3, 4, 5, 6)
	if st := m.r.Stats(); st.Held != 3 || st.HeldBytes != 0 || st.Delivered != 7 {
		t.Errorf("%+v", st)
	}
}

func TestAGapIsWaitedForUntilAllPathsHavePassedItAndItWouldHaveBeenSentAgain(t *testing.T) {
	m := newMailbox(t, bond.ReceiverConfig{})
	m.arrive(1, 7, 0, 1)
	m.arrive(2, 7, 2, 3)
	m.arrive(1, 7, 5) // 4 is missing, and may come by 2
	m.wait(60 * ms)
	m.arrive(2, 7, 6) // now it may not
	m.wait(85 * ms)
	m.want(7, 0, 1, 2, 3)
	m.wait(5*ms + time.Microsecond) // 150 ms after 5 came
	m.want(7, 5, 6)
	if st := m.r.Stats(); st.ByTime != 1 || st.ByPaths != 0 {
		t.Errorf("%+v", st)
	}
	m.arrive(1, 7, 8)
	m.arrive(2, 7, 9)
	m.wait(99 * ms)
	m.want(7)
	m.wait(2 * ms)
	m.want(7, 8, 9)
	if st := m.r.Stats(); st.ByTime != 1 || st.ByPaths != 1 {
		t.Errorf("%+v", st)
	}
}

func TestHowLongAGapIsWaitedForIsLearnedFromWhatIsSentAgain(t *testing.T) {
	m := newMailbox(t, bond.ReceiverConfig{})
	c := uint64(0)
	for range 5 { // every gap is filled after 40 ms
		m.arrive(1, 7, c, c+2)
		m.wait(40 * ms)
		m.arrive(1, 7, c+1)
		c += 3
	}
	m.got = nil
	m.arrive(1, 7, c, c+2)
	m.wait(64 * ms)
	m.want(7, c)
	m.wait(2 * ms)
	m.want(7, c+2)
	m.wait(10 * ms)
	m.arrive(1, 7, c+1) // late: the next one is waited for longer
	m.want(7, c+1)
	m.arrive(1, 7, c+3, c+5)
	m.wait(118 * ms)
	m.want(7, c+3)
	m.wait(3 * ms)
	m.want(7, c+5)
	st := m.r.Stats()
	if st.Late != 1 || st.Reordered != 1 || st.ByPaths != 2 {
		t.Errorf("%+v", st)
	}
	// And forgotten.
	m.wait(25 * time.Second)
	m.arrive(1, 7, c+6, c+8)
	m.wait(99 * ms)
	m.want(7, c+6)
	m.wait(2 * ms)
	m.want(7, c+8)
}

func TestHowLongPacketsTookIsKnownForMoreThanTenSeconds(t *testing.T) {
	m := newMailbox(t, bond.ReceiverConfig{})
	m.arrive(1, 7, 0, 2)
	m.wait(40 * ms)
	m.arrive(1, 7, 1)
	m.wait(12 * time.Second)
	m.arrive(1, 7, 4)
	m.got = nil
	m.wait(66 * ms)
	m.want(7, 4)
}

func TestAPathThatIsSilentIsNotWaitedForForEver(t *testing.T) {
	m := newMailbox(t, bond.ReceiverConfig{})
	m.arrive(1, 7, 0, 1)
	m.arrive(2, 7, 2)
	for c := uint64(3); c < 60; c++ {
		m.arrive(1, 7, c)
		m.wait(10 * ms)
	}
	m.got = nil
	m.arrive(1, 7, 61)
	m.wait(101 * ms)
	m.want(7, 61)
	if st := m.r.Stats(); st.ByPaths != 1 || st.ByTime != 0 {
		t.Errorf("%+v", st)
	}
}

func TestAPathIsPassedByEachGapOnItsOwn(t *testing.T) {
	// Gaps that came about together are released together, not one after the other.
	m := newMailbox(t, bond.ReceiverConfig{})
	m.arrive(1, 7, 0, 2, 4, 6, 8, 10)
	m.got = nil
	m.wait(101 * ms)
	m.want(7, 2, 4, 6, 8, 10)
}

func TestWhatIsUrgentNeverWaits(t *testing.T) {
	m := newMailbox(t, bond.ReceiverConfig{})
	m.arrive(1, 7, 0)
	m.arriveAs(2, 7, 5, 100, true)
	m.arrive(2, 7, 6)
	m.want(7, 0, 5)
	m.arrive(1, 7, 1, 2, 3)
	m.arrive(1, 7, 4)
	m.want(7, 1, 2, 3, 4, 6)
	if st := m.r.Stats(); st.Reordered != 0 {
		t.Errorf("%+v", st)
	}
}

func TestFramesOfOursFillTheirPlaceAndAreNotDelivered(t *testing.T) {
	m := newMailbox(t, bond.ReceiverConfig{})
	m.arrive(1, 7, 0)
	m.arrive(2, 7, 3)
	for _, c := range []uint64{1, 2} {
		if m.r.Arrive(m.now, m.now, 1, 7, c, 32, nil, false) {
			t.Error("nothing is to be delivered")
		}
		m.drain()
	}
	m.want(7, 0, 3)
}

func TestWhatNeverCarriedAnythingIsNotAnswered(t *testing.T) {
	m := newMailbox(t, bond.ReceiverConfig{})
	for c := range uint64(50) {
		m.r.Arrive(m.now, m.now, 1, 7, c, 32, nil, false)
		m.wait(10 * ms)
	}
	if len(m.fed) != 0 {
		t.Errorf("%d frames answer what was no data", len(m.fed))
	}
	m.wait(time.Second) // that there is no more of it is told, and repeated once
	if len(m.fed) != 2 {
		t.Errorf("%d frames tell that a stream has stopped", len(m.fed))
	}
	if m.r.Wake() != bond.Never {
		t.Error("it wants to be asked")
	}
}

func TestSessionsFollowEachOther(t *testing.T) {
	m := newMailbox(t, bond.ReceiverConfig{})
	m.arrive(1, 7, 100)
	m.arrive(2, 7, 101)
	m.arrive(1, 8, 0, 1) // path 2 still has something of 7
	m.wait(20 * ms)
	m.arrive(2, 7, 102, 103)
	m.wait(20 * ms)
	want := []parcelID{{7, 100}, {7, 101}, {7, 102}, {7, 103}}
	if !slices.Equal(m.got, want) {
		t.Errorf("delivered %v", m.got)
	}
	m.arrive(2, 8, 2)
	want = append(want, parcelID{8, 0}, parcelID{8, 1}, parcelID{8, 2})
	if !slices.Equal(m.got, want) {
		t.Errorf("delivered %v", m.got)
	}
	m.arrive(1, 7, 104) // later than anybody waits
	if want = append(want, parcelID{7, 104}); !slices.Equal(m.got, want) {
		t.Errorf("delivered %v", m.got)
	}
	if st := m.r.Stats(); st.Late != 1 || st.Reordered != 1 {
		t.Errorf("%+v", st)
	}
}

func TestThePathsOfAnOldSessionAreNotWaitedForLong(t *testing.T) {
	m := newMailbox(t, bond.ReceiverConfig{})
	m.arrive(1, 7, 100)
	m.arrive(2, 7, 101)
	m.arrive(1, 8, 0, 1)
	m.got = nil
	m.wait(149 * ms)
	m.want(8)
	m.wait(2 * ms)
	m.want(8, 0, 1)
}

func TestAPathThatIsStillInTheOldSessionIsWaitedForInTheNewOne(t *testing.T) {
	m := newMailbox(t, bond.ReceiverConfig{})
	m.arrive(1, 7, 100)
	m.arrive(2, 7, 101)
	m.arrive(1, 8, 0)
	m.got = nil
	m.wait(60 * ms)
	m.arrive(1, 8, 2)
	m.wait(149 * ms) // path 2 may yet bring 1
	m.want(8, 0)
	m.wait(2 * ms)
	m.want(8, 2)
}

func TestAPathThatJoinsIsNotWaitedForByGapsThatWereThere(t *testing.T) {
	m := newMailbox(t, bond.ReceiverConfig{})
	m.arrive(1, 7, 0, 1, 3, 4, 6, 10) // 2 and 5 are missing
	m.got = nil
	m.wait(50 * ms)
	m.arrive(3, 7, 2)
	m.want(7, 2, 3, 4)
	m.wait(51 * ms)
	m.want(7, 6, 10)
}

func TestOfThreeSessionsTheOldestIsGivenOutAtOnce(t *testing.T) {
	m := newMailbox(t, bond.ReceiverConfig{})
	m.arrive(1, 1, 10, 12)
	m.arrive(1, 2, 1)
	m.arrive(1, 3, 1)
	m.arrive(1, 4, 1)
	m.arrive(1, 5, 1)
	m.wait(time.Second)
	want := []parcelID{{1, 10}, {1, 12}, {2, 1}, {3, 1}, {4, 1}, {5, 1}}
	if !slices.Equal(m.got, want) {
		t.Errorf("delivered %v", m.got)
	}
}

func TestASessionThatGoesOnAloneIsNotOver(t *testing.T) {
	m := newMailbox(t, bond.ReceiverConfig{})
	m.arrive(1, 8, 0) // overtakes its predecessor
	m.arrive(2, 7, 50)
	m.wait(400 * ms)
	m.arrive(2, 7, 51)
	m.wait(3100 * ms)
	for c := uint64(1); c < 20; c += 2 { // and yet it is the one that lasts
		m.arrive(1, 8, c+1)
		m.arrive(2, 8, c)
		m.wait(10 * ms)
	}
	m.wait(200 * ms)
	last := m.got[len(m.got)-16:]
	if !slices.IsSortedFunc(last, func(a, b parcelID) int { return int(a.counter) - int(b.counter) }) || last[15].counter != 20 {
		t.Errorf("delivered %v", m.got)
	}
}

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

func TestAReceiverAllocatesNothingInSteadyState(t *testing.T) {
	m := newMailbox(t, bond.ReceiverConfig{})
	var f wire.Feedback
	packet := payload(7, 0, 1400)
	c := uint64(0)
	round := func() {
		for range 100 { // path 2 is ahead by 20
			m.now += 300 * time.Microsecond
			m.r.Arrive(m.now, m.now, 2, 7, 2*c+40, 1432, packet, false)
			m.r.Arrive(m.now, m.now, 1, 7, 2*c+1, 1432, packet, false)
			c++
			for m.r.Next(m.now) != nil {
			}
			m.r.Feedback(m.now, &f)
			m.r.Wake()
		}
	}
	round()
	round()
	if n := testing.AllocsPerRun(50, round); n != 0 {
		t.Errorf("%v allocations for 200 packets", n)
	}
	if st := m.r.Stats(); st.Held < 5000 {
		t.Errorf("nothing was held: %+v", st)
	}
}

func BenchmarkArrive(b *testing.B) {
	for _, ahead := range []uint64{0, 20, 1000} {
		b.Run(fmt.Sprintf("skew %d", ahead), func(b *testing.B) {
			r := bond.NewReceiver(bond.ReceiverConfig{})
			packet := make([]byte, 1420)
			var f wire.Feedback
			b.ReportAllocs()
			b.SetBytes(1420)
			now := time.Duration(0)
			for i := range uint64(b.N) {
				now += 10 * time.Microsecond
				c, p := i, bond.PathID(1)
				if i%2 == 0 {
					c, p = i+2*ahead, 2
				}
				r.Arrive(now, now, p, 7, c, 1452, packet, false)
				for r.Next(now) != nil {
				}
				r.Feedback(now, &f)
			}
		})
	}
}
