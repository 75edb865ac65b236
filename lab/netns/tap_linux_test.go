package netns

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A program that is being started has the descriptors of all devices until it is executed, so one that was closed may live on for a moment.
func TestADeviceIsMadeAnewWhileAnotherStillHasItsDescriptor(t *testing.T) {
	t.Parallel()
	_, b, _ := offices(t)
	const other = 50 * time.Millisecond
	err := enter(b.namespace, func() error {
		first, err := openTAP("again0")
		if err != nil {
			return err
		}
		copied, err := unix.FcntlInt(uintptr(first), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return err
		}
		closeTAP(first)
		time.AfterFunc(other, func() { unix.Close(copied) })
		began := time.Now()
		second, err := openTAP("again0")
		if err != nil {
			return err
		}
		defer closeTAP(second)
		if took := time.Since(began); took < other/2 {
			t.Errorf("it was made after %v, while the first was there", took)
		}
		// One that stays is an error, and no wait without an end.
		if third, err := openTAP("again0"); !errors.Is(err, unix.EBUSY) {
			closeTAP(third)
			t.Errorf("of a device that stays: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
