package storetest_test

import (
	"testing"

	"weft/control/store"
	"weft/control/store/storetest"
)

func TestTheStoreInMemoryPassesTheSuite(t *testing.T) {
	storetest.Run(t, func(*testing.T) func() store.Store {
		m := new(storetest.Memory)
		return func() store.Store { return m }
	})
}
