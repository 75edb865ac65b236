package node

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weft"
)

// disk keeps what a keeper stores.
type disk struct {
	mu       sync.Mutex
	versions []uint64
	err      error
}

func (d *disk) store(m *weft.NetworkMap) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return d.err
	}
	d.versions = append(d.versions, m.Version)
	return nil
}

func (d *disk) fails(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

func (d *disk) writes() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.versions)
}

func (d *disk) last() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.versions) == 0 {
		return 0
	}
	return d.versions[len(d.versions)-1]
}

func TestAMapThatChangesOftenIsWrittenSeldomAndItsLastChangeIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d disk
		k := newKeeper(silent, d.store)
		k.put(&weft.NetworkMap{Version: 1})
		synctest.Wait()
		if d.last() != 1 {
			t.Error("the first map was not written at once")
		}
		for v := uint64(2); v <= 1000; v++ { // for 10 s
			time.Sleep(10 * time.Millisecond)
			k.put(&weft.NetworkMap{Version: v})
		}
		if n := d.writes(); n < 4 || n > 7 {
			t.Errorf("a map that changed for 10 s was written %d times", n)
		}
		time.Sleep(keepEvery)
		synctest.Wait()
		if d.last() != 1000 {
			t.Errorf("%d was written last", d.last())
		}
		k.put(&weft.NetworkMap{Version: 1001})
		k.put(&weft.NetworkMap{Version: 1002})
		k.close()
		if d.last() != 1002 {
			t.Errorf("after the end, %d is on the disk", d.last())
		}
		k.close()
	})
}

func TestAMapThatWasForgottenIsNotWrittenAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d disk
		k := newKeeper(silent, d.store)
		k.put(&weft.NetworkMap{Version: 1})
		synctest.Wait()
		k.put(&weft.NetworkMap{Version: 2})
		if err := k.drop(func() error {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.versions = nil
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		k.close()
		if d.writes() > 0 {
			t.Errorf("%d was written", d.last())
		}
	})
}

func TestAFullDiskIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := disk{err: errors.New("no space left on device")}
		k := newKeeper(silent, d.store)
		k.put(&weft.NetworkMap{Version: 1})
		synctest.Wait()
		d.fails(nil)
		time.Sleep(keepRetry + keepEvery)
		synctest.Wait()
		if d.last() != 1 {
			t.Error("the map was not written when there was room again")
		}
		d.fails(errors.New("no space left on device"))
		k.put(&weft.NetworkMap{Version: 2})
		time.Sleep(keepEvery)
		synctest.Wait()
		k.put(&weft.NetworkMap{Version: 3})
		d.fails(nil)
		k.close()
		if d.last() != 3 {
			t.Errorf("after the end, %d is on the disk", d.last())
		}
	})
}
