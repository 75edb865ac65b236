package fit

import (
	"testing"
	"time"
)

func TestAnswersAreABurstAndThenSoManyASecond(t *testing.T) {
	var l Limit
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	allowed := func(n int) (got int) {
		for range n {
			if l.Allow(now) {
				got++
			}
		}
		return got
	}
	if got := allowed(1000); got != answersBurst {
		t.Errorf("%d of a burst are answered", got)
	}
	if now = now.Add(10 * answerEvery); allowed(1000) != 10 {
		t.Error("what a while brings is not what it lasts")
	}
	got := 0
	for range 2000 { // in two seconds, four times too many
		now = now.Add(time.Millisecond)
		got += allowed(4)
	}
	if got != 2*answersPerSecond {
		t.Errorf("%d are answered in two seconds", got)
	}
	if now = now.Add(time.Hour); allowed(1000) != answersBurst {
		t.Error("rest does not fill it, or more than that")
	}
	now = now.Add(-time.Minute) // a clock that went back
	allowed(1)
	if now = now.Add(2 * time.Minute); allowed(1) != 1 {
		t.Error("it does not recover from a clock that went back")
	}
}
