package bond_test

import (
	"fmt"
	"testing"
	"time"

	"weft/bond"
	"weft/wire"
)

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
