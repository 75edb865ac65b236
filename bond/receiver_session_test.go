package bond_test

import (
	"slices"
	"testing"
	"time"

	"weft/bond"
)

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
