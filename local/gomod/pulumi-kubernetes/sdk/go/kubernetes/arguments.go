package kubernetes

import "reflect"

// UntypedArgs are the inputs of an object of any kind.
type UntypedArgs map[string]any

// ElementType makes them an input.
func (UntypedArgs) ElementType() reflect.Type {
	return reflect.TypeFor[map[string]any]()
}
